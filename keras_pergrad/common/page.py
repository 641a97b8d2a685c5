"""A page of HTML, alone in its file: for light and dark, and for paper."""

from html import escape

from keras_pergrad.common.arguments import path_text

#: What the path of a page is.
PAGE = "the path of a file to write, such as 'page.html'"
_STYLE = """
.kpg{--back:#fff;--soft:#f5f5f2;--text:#1d1d1b;--muted:#63625c;--rule:#dcdbd4;
--c1:#2458c0;--c2:#b8500a;--c3:#14765a;color-scheme:light;
background:var(--back);color:var(--text);box-sizing:border-box;
max-width:74rem;margin:0 auto;padding:1.25rem 1rem 3rem;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
html:has(>body>.kpg){background:#fff}
@media not print{@media(prefers-color-scheme:dark){.kpg{--back:#161615;
--soft:#21211f;--text:#ecebe6;--muted:#a8a69e;--rule:#3b3a37;--c1:#82abff;--c2:#f2a461;
--c3:#62cda1;color-scheme:dark}html:has(>body>.kpg){background:#161615}}}
.kpg *{box-sizing:border-box}
.kpg h1{font-size:1.6rem;line-height:1.2;margin:0 0 .25rem}
.kpg h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.kpg p{margin:0 0 .6rem}
.kpg .muted{color:var(--muted);font-size:.875rem}
.kpg .first{font-size:1.15rem;max-width:46rem;margin:1rem 0 .6rem;
padding-left:.9rem;border-left:4px solid var(--c1);overflow-wrap:anywhere}
.kpg ul{max-width:48rem;margin:.4rem 0;padding-left:1.2rem}
.kpg li{margin:.3rem 0;overflow-wrap:anywhere}
.kpg .charts{display:grid;gap:1rem;margin-top:1.5rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}
.kpg figure{margin:0;padding:.8rem;background:var(--soft);border-radius:10px;
max-width:34rem;overflow-x:auto}
.kpg figcaption{font-weight:600;font-size:.9rem}
.kpg figure p{margin:.3rem 0 0;font-size:.8rem}
.kpg figure img,.kpg svg{display:block;width:100%;height:auto}
.kpg .line{fill:none;stroke:var(--c1);stroke-width:1.8;stroke-linejoin:round}
.kpg circle{fill:var(--c1)}
.kpg .small{display:inline-block;width:6rem;vertical-align:middle}
.kpg .wide{overflow-x:auto;max-width:100%}
.kpg table{border-collapse:collapse;font-size:.875rem;
font-variant-numeric:tabular-nums}
.kpg th,.kpg td{text-align:left;padding:.35rem .9rem .35rem 0;
border-bottom:1px solid var(--rule);white-space:nowrap;
vertical-align:top;background:none;color:inherit}
.kpg td.long{white-space:normal;min-width:18rem;overflow-wrap:anywhere}
.kpg th{color:var(--muted);font-weight:600}
.kpg dt{font-weight:600;margin-top:.6rem}
.kpg dd{margin:0;max-width:48rem}
@media print{.kpg{max-width:none;padding:0;font-size:10pt}
.kpg figure,.kpg tr,.kpg li,.kpg .first{break-inside:avoid}
.kpg h2{break-after:avoid;margin-top:1.2rem}.kpg .wide{overflow:visible}
.kpg th,.kpg td{white-space:normal}.kpg figure{max-width:24rem}}
"""


def write(path, document):
    """Write a page to a file; return its path."""
    path = path_text("path", path, PAGE)
    with open(path, "w", encoding="utf-8") as file:
        file.write(document)
    return path


def whole(title, content, more=""):
    """Return a page, with `more` in its head."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"{more}<title>{escape(title)}</title></head>\n"
        f'<body style="margin:0">{content}</body></html>\n'
    )


def main(parts):
    """Return the parts of a page's content with their style sheet."""
    return f'<style>{_STYLE}</style><main class="kpg">{"".join(parts)}</main>'


def figure(title, drawing, note):
    """Return a drawing with its title and a note."""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{drawing}"
        f'<p class="muted">{escape(note)}</p></figure>'
    )


def bullet_list(sentences):
    """Return sentences as a list; nothing of none."""
    items = "".join(f"<li>{escape(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>" if items else ""
