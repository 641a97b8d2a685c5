// Conv2D and its two gradients, NHWC, one group.
#include <algorithm>

#include "window.h"

namespace stub {
namespace {

bool Supported(Call& call) {
  if (call.kernel->s["data_format"] == "NHWC" &&
      call.kernel->s["padding"] != "EXPLICIT")
    return true;
  call.Fail("the stand-in convolves NHWC with SAME or VALID padding only");
  return false;
}

void Conv2D(Call& call) {
  Tensor x, w, o;
  if (!Supported(call) || !call.In(0, &x) || !call.In(1, &w)) return;
  Dims dw = w.dims();
  Window win(call.kernel, x.dims(), dw[0], dw[1]);
  if (win.c != dw[2]) return call.Fail("the stand-in has no grouped Conv2D");
  int64_t in = dw[2], out = dw[3];
  if (!call.Out(0, TF_FLOAT, {win.n, win.oh, win.ow, out}, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  win.Each([&](int64_t from, int64_t i, int64_t j, int64_t to) {
    for (int64_t c = 0; c < in; ++c)
      for (int64_t k = 0; k < out; ++k)
        o.f()[to * out + k] += x.f()[from * in + c] *
                               w.f()[((i * win.kw + j) * in + c) * out + k];
  });
}

void InputGradient(Call& call) {
  Tensor sizes, w, g, o;
  if (!Supported(call) || !call.In(0, &sizes, /*host=*/true)) return;
  if (!call.In(1, &w) || !call.In(2, &g)) return;
  Dims dims = ListOf(sizes), dw = w.dims();
  Window win(call.kernel, dims, dw[0], dw[1]);
  int64_t in = dw[2], out = dw[3];
  if (!call.Out(0, TF_FLOAT, dims, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  win.Each([&](int64_t from, int64_t i, int64_t j, int64_t to) {
    for (int64_t c = 0; c < in; ++c)
      for (int64_t k = 0; k < out; ++k)
        o.f()[from * in + c] += g.f()[to * out + k] *
                                w.f()[((i * win.kw + j) * in + c) * out + k];
  });
}

void FilterGradient(Call& call) {
  Tensor x, sizes, g, o;
  if (!Supported(call) || !call.In(0, &x)) return;
  if (!call.In(1, &sizes, /*host=*/true) || !call.In(2, &g)) return;
  Dims dw = ListOf(sizes);
  Window win(call.kernel, x.dims(), dw[0], dw[1]);
  int64_t in = dw[2], out = dw[3];
  if (!call.Out(0, TF_FLOAT, dw, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  win.Each([&](int64_t from, int64_t i, int64_t j, int64_t to) {
    for (int64_t c = 0; c < in; ++c)
      for (int64_t k = 0; k < out; ++k)
        o.f()[((i * win.kw + j) * in + c) * out + k] +=
            x.f()[from * in + c] * g.f()[to * out + k];
  });
}

void Add(const char* op, Compute compute, std::vector<std::string> host) {
  Definition def{op, compute, {{"T", TF_FLOAT}}, host};
  def.strings = {"padding", "data_format"};
  def.lists = {"strides", "dilations"};
  Register(def);
}

}  // namespace

void RegisterConvolutions() {
  Add("Conv2D", Conv2D, {});
  Add("Conv2DBackpropInput", InputGradient, {"input_sizes"});
  Add("Conv2DBackpropFilter", FilterGradient, {"filter_sizes"});
}

}  // namespace stub
