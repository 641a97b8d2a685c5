// Matrix products and biases.
#include <algorithm>

#include "stub.h"

namespace stub {
namespace {

void Product(const float* a, const float* b, float* o, int64_t m, int64_t n,
             int64_t inner, bool ta, bool tb) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t x = 0; x < inner; ++x)
        sum += a[ta ? x * m + i : i * inner + x] *
               b[tb ? j * inner + x : x * n + j];
      o[i * n + j] = sum;
    }
}

void MatMul(Call& call) {
  Tensor a, b, o;
  if (!call.In(0, &a) || !call.In(1, &b)) return;
  bool ta = call.kernel->b["transpose_a"], tb = call.kernel->b["transpose_b"];
  Dims da = a.dims(), db = b.dims();
  int64_t m = da[ta], inner = da[!ta], n = db[!tb];
  if (inner != db[tb]) return call.Fail("MatMul: inner dimensions differ");
  if (!call.Out(0, TF_FLOAT, {m, n}, &o)) return;
  Product(a.f(), b.f(), o.f(), m, n, inner, ta, tb);
}

// A product, its bias and Relu as one op, as a pass of the plugin makes it.
void FusedMatMul(Call& call) {
  MatMul(call);
  Tensor bias, o;
  if (TF_GetCode(call.status) != TF_OK || !call.In(2, &bias)) return;
  o.t = TF_GetMutableOutput(call.ctx, 0, call.status);
  for (int64_t i = 0, n = o.n(); i < n; ++i)
    o.f()[i] = std::max(0.f, o.f()[i] + bias.f()[i % bias.n()]);
}

// Which matrix of an operand a matrix of the result comes from, where batch
// axes of size 1 are repeated.
int64_t Source(int64_t at, const Dims& out, const Dims& in) {
  int64_t from = 0, size = 1;
  for (int k = int(out.size()) - 3, q = int(in.size()) - 3; k >= 0; --k, --q) {
    int64_t here = at % out[k];
    at /= out[k];
    if (q < 0) continue;
    from += in[q] == 1 ? 0 : here * size;
    size *= in[q];
  }
  return from;
}

void BatchMatMul(Call& call) {
  Tensor a, b, o;
  if (!call.In(0, &a) || !call.In(1, &b)) return;
  bool ta = call.kernel->b["adj_x"], tb = call.kernel->b["adj_y"];
  Dims da = a.dims(), db = b.dims();
  size_t ra = da.size(), rb = db.size();
  int64_t m = da[ra - 2 + ta], inner = da[ra - 1 - ta], n = db[rb - 1 - tb];
  Dims out(std::max(ra, rb), 1);
  for (size_t k = 3; k <= out.size(); ++k) {
    int64_t x = k <= ra ? da[ra - k] : 1, y = k <= rb ? db[rb - k] : 1;
    out[out.size() - k] = x == 1 ? y : x;
  }
  out[out.size() - 2] = m;
  out[out.size() - 1] = n;
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  int64_t size = m * n, batch = size > 0 ? o.n() / size : 0;
  for (int64_t i = 0; i < batch; ++i)
    Product(a.f() + Source(i, out, da) * m * inner,
            b.f() + Source(i, out, db) * inner * n, o.f() + i * size, m, n,
            inner, ta, tb);
}

int64_t InnerSize(Call& call, const Dims& d) {
  int64_t inner = 1;
  if (call.kernel->s["data_format"] == "NCHW")
    for (size_t i = 2; i < d.size(); ++i) inner *= d[i];
  return inner;
}
void BiasAdd(Call& call) {
  Tensor a, b, o;
  if (!call.In(0, &a) || !call.In(1, &b)) return;
  if (!call.Out(0, TF_FLOAT, a.dims(), &o)) return;
  int64_t channels = b.n(), inner = InnerSize(call, a.dims());
  for (int64_t i = 0, n = a.n(); i < n; ++i)
    o.f()[i] = a.f()[i] + b.f()[(i / inner) % channels];
}
void BiasAddGrad(Call& call) {
  Tensor a, o;
  if (!call.In(0, &a)) return;
  Dims d = a.dims();
  bool nchw = call.kernel->s["data_format"] == "NCHW";
  int64_t channels = nchw ? d[1] : d.back(), inner = InnerSize(call, d);
  if (!call.Out(0, TF_FLOAT, {channels}, &o)) return;
  std::fill(o.f(), o.f() + channels, 0.f);
  for (int64_t i = 0, n = a.n(); i < n; ++i)
    o.f()[(i / inner) % channels] += a.f()[i];
}
void AddN(Call& call) {
  Tensor first, o;
  if (!call.In(0, &first)) return;
  if (!call.Out(0, TF_FLOAT, first.dims(), &o)) return;
  std::copy(first.f(), first.f() + first.n(), o.f());
  for (int i = 1; i < TF_NumInputs(call.ctx); ++i) {
    Tensor a;
    if (!call.In(i, &a)) return;
    for (int64_t j = 0, n = a.n(); j < n; ++j) o.f()[j] += a.f()[j];
  }
}

}  // namespace

void RegisterLinear() {
  const TF_DataType F = TF_FLOAT;
  Definition matmul{"MatMul", MatMul, {{"T", F}}};
  matmul.bools = {"transpose_a", "transpose_b"};
  Register(matmul);
  Definition fused{"_FusedMatMul", FusedMatMul, {{"T", F}}};
  fused.bools = matmul.bools;
  Register(fused);
  Definition batch{"BatchMatMulV2", BatchMatMul, {{"T", F}}};
  batch.bools = {"adj_x", "adj_y"};
  Register(batch);
  Definition bias{"BiasAdd", BiasAdd, {{"T", F}}};
  bias.strings = {"data_format"};
  Register(bias);
  Definition grad{"BiasAddGrad", BiasAddGrad, {{"T", F}}};
  grad.strings = {"data_format"};
  Register(grad);
  Register({"AddN", AddN, {{"T", F}}});
}

}  // namespace stub
