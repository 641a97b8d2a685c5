# pyright: strict, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Calls as an editor sees them: marked lines are errors, no others."""

# fmt: off
import keras
import numpy as np

import keras_pergrad as kpg

x, y = np.ones((8, 4)), np.ones((8, 1))
model = kpg.PerGradModel()
net: keras.Model = model

kpg.ClippedMean(1.0, noise_multiplier=1.1, per="layer")
kpg.ClippedMean(1.0, noise_multipler=1.1)  # expect: reportCallIssue
kpg.ClippedMean(1.0, 1.1)  # expect: reportCallIssue
kpg.ClippedMean(1.0, per="weight")  # expect: reportArgumentType
kpg.ClippedMean("1.0")  # expect: reportArgumentType
kpg.privacy.AutomaticClippedMean(gamma=0.1)
kpg.privacy.AutomaticClippedMean(gama=0.1)  # expect: reportCallIssue
kpg.privacy.AdaptiveClippedMean(quantile=0.5)
kpg.privacy.AdaptiveClippedMean(quantile="half")  # expect: reportArgumentType

kpg.Vectorized(kpg.ClippedMean(1.0), statistics=True)
kpg.Vectorized(agregation="mean")  # expect: reportCallIssue
kpg.Vectorized(statistics="yes")  # expect: reportArgumentType
kpg.PerSample(updates="sample")
kpg.PerSample(updates="samples")  # expect: reportArgumentType
kpg.Accumulated(steps=4, inner=kpg.Vectorized())
kpg.Accumulated(step=4)  # expect: reportCallIssue
kpg.Accumulated(steps="4")  # expect: reportArgumentType
kpg.Accumulated(tail="discard")  # expect: reportArgumentType

model.compile("adam", "mse", gradient_mode="vectorized")
model.compile("adam", "mse", gradient_mode=kpg.Vectorized())
model.compile("adam", "mse", gradient_mode=1)  # expect: reportArgumentType

kpg.per_sample_gradients(net, x, y, method="per_sample")
kpg.per_sample_gradients(net, x, y, methd="loop")  # expect: reportCallIssue
kpg.per_sample_norms(net, x, y, method="fast")  # expect: reportArgumentType
kpg.per_sample_norms(net, x, y, per_variable=True)
kpg.gradient_statistics(net, x, batch_size="3")  # expect: reportArgumentType
print(kpg.explain(net, batch_size=8).rows)
kpg.explain(net, batchsize=8)  # expect: reportCallIssue
print(kpg.check_gradients(net, x, y, repeats=2).ok)
kpg.check_gradients(net, x, y, repeat=2)  # expect: reportCallIssue
compare_devices = kpg.diagnose.compare_devices
print(compare_devices(net, x, y, devices=["CPU:0"]).ok)
compare_devices(net, x, y, device="CPU:0")  # expect: reportCallIssue
print(kpg.diagnose.profile_pipeline(x, net, batches=5).what_if)
kpg.diagnose.profile_pipeline(x, net, batch=5)  # expect: reportCallIssue
kpg.replace_batch_norm(net, "frozen")
kpg.replace_batch_norm(net, "freeze")  # expect: reportArgumentType
kpg.diagnose.compare_runs("logs", by="seed", max_steps=10)
kpg.diagnose.compare_runs("logs", max_step=10)  # expect: reportCallIssue
kpg.callbacks.DataStall(warn_above=0.1)
kpg.callbacks.DataStall(warn_abov=0.1)  # expect: reportCallIssue
kpg.callbacks.GradientVariance(every="epoch")
kpg.callbacks.GradientVariance(every="often")  # expect: reportArgumentType
kpg.callbacks.DevicePlacement(deep=True)
kpg.callbacks.DevicePlacement(deeper=True)  # expect: reportCallIssue

kpg.PrivateTraining(delta=1e-5, samples=8, batch_size=4, target_epsilon=3)
kpg.PrivateTraining(delta=1e-5, samples=8, batch=4)  # expect: reportCallIssue
