"""Where the project is to be found, as pyproject.toml says."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

#: Whether the package is on the package index and the repository is hosted.
PUBLISHED = _SETTINGS["tool"]["keras-pergrad"]["published"]
REPOSITORY = _SETTINGS["project"]["urls"]["Repository"].rstrip("/")
SITE = _SETTINGS["project"]["urls"]["Documentation"].rstrip("/")
_NAME = REPOSITORY.removeprefix("https://github.com/")
#: What stands before the path of a file, of a folder, of a picture that a
#: page shows, and of a notebook that Colab opens.
FILE = f"{REPOSITORY}/blob/main/"
FOLDER = f"{REPOSITORY}/tree/main/"
PICTURE = f"https://raw.githubusercontent.com/{_NAME}/main/"
COLAB = f"https://colab.research.google.com/github/{_NAME}/blob/main/"
