// Moving numbers about: transpose, gather, concatenate, fill.
#include <algorithm>
#include <cstring>

#include "stub.h"

namespace stub {
namespace {

void Transpose(Call& call) {
  Tensor a, p, o;
  if (!call.In(0, &a) || !call.In(1, &p, /*host=*/true)) return;
  Dims d = a.dims(), out(d.size()), stride(d.size(), 1);
  int rank = d.size();
  for (int i = rank - 2; i >= 0; --i) stride[i] = stride[i + 1] * d[i + 1];
  for (int i = 0; i < rank; ++i) out[i] = d[p.index(i)];
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  Dims at(rank, 0);
  for (int64_t i = 0, n = o.n(); i < n; ++i) {
    int64_t from = 0;
    for (int k = 0; k < rank; ++k) from += at[k] * stride[p.index(k)];
    o.f()[i] = a.f()[from];
    for (int k = rank - 1; k >= 0; --k) {
      if (++at[k] < out[k]) break;
      at[k] = 0;
    }
  }
}

template <class Index>
void Gather(Call& call) {  // along axis 0, no batch dimensions
  Tensor params, ids, axis, o;
  if (!call.In(0, &params) || !call.In(1, &ids)) return;
  if (!call.In(2, &axis, /*host=*/true)) return;
  if (axis.index(0) != 0 || call.kernel->i["batch_dims"] != 0)
    return call.Fail("GatherV2: the stand-in gathers along axis 0 only");
  Dims out = ids.dims(), d = params.dims();
  int64_t row = 1;
  for (size_t k = 1; k < d.size(); ++k) {
    row *= d[k];
    out.push_back(d[k]);
  }
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  for (int64_t i = 0, n = ids.n(); i < n; ++i) {
    int64_t id = ids.data<Index>()[i];
    if (id < 0 || id >= d[0]) return call.Fail("index out of range");
    memcpy(o.f() + i * row, params.f() + id * row, row * sizeof(float));
  }
}

template <class Index>
void SegmentSum(Call& call) {
  Tensor data, ids, count, o;
  if (!call.In(0, &data) || !call.In(1, &ids)) return;
  if (!call.In(2, &count, /*host=*/true)) return;
  Dims d = data.dims(), out{count.index(0)};
  int64_t row = 1;
  for (size_t k = ids.dims().size(); k < d.size(); ++k) {
    row *= d[k];
    out.push_back(d[k]);
  }
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  for (int64_t i = 0, n = ids.n(); i < n; ++i) {
    int64_t id = ids.data<Index>()[i];
    if (id < 0) continue;
    if (id >= out[0]) return call.Fail("segment out of range");
    for (int64_t k = 0; k < row; ++k)
      o.f()[id * row + k] += data.f()[i * row + k];
  }
}

void Concat(Call& call) {
  int n = TF_NumInputs(call.ctx) - 1;
  Tensor axis, o;
  if (!call.In(n, &axis, /*host=*/true)) return;
  std::vector<Tensor> parts(n);
  for (int i = 0; i < n; ++i)
    if (!call.In(i, &parts[i])) return;
  Dims out = parts[0].dims();
  int64_t k = axis.index(0);
  if (k < 0) k += out.size();
  for (int i = 1; i < n; ++i) out[k] += parts[i].dims()[k];
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  int64_t outer = 1, written = 0;
  for (int64_t i = 0; i < k; ++i) outer *= out[i];
  for (int64_t i = 0; i < outer; ++i)
    for (auto& part : parts) {
      int64_t size = part.n() / outer;
      memcpy(o.f() + written, part.f() + i * size, size * sizeof(float));
      written += size;
    }
}

void Split(Call& call) {
  Tensor axis, a;
  if (!call.In(0, &axis, /*host=*/true) || !call.In(1, &a)) return;
  int64_t pieces = call.kernel->i["num_split"], k = axis.index(0);
  Dims d = a.dims();
  if (k < 0) k += d.size();
  d[k] /= pieces;
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < k; ++i) outer *= d[i];
  for (size_t i = k; i < d.size(); ++i) inner *= d[i];
  for (int64_t p = 0; p < pieces; ++p) {
    Tensor o;
    if (!call.Out(p, TF_FLOAT, d, &o)) return;
    for (int64_t i = 0; i < outer; ++i)
      memcpy(o.f() + i * inner, a.f() + (i * pieces + p) * inner,
             inner * sizeof(float));
  }
}

void Tile(Call& call) {
  Tensor a, times, o;
  if (!call.In(0, &a) || !call.In(1, &times, /*host=*/true)) return;
  Dims d = a.dims(), out = d;
  int rank = d.size();
  for (int i = 0; i < rank; ++i) out[i] *= times.index(i);
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  Dims at(rank, 0);
  for (int64_t i = 0, n = o.n(); i < n; ++i) {
    int64_t from = 0;
    for (int k = 0; k < rank; ++k) from = from * d[k] + at[k] % d[k];
    o.f()[i] = a.f()[from];
    for (int k = rank - 1; k >= 0; --k) {
      if (++at[k] < out[k]) break;
      at[k] = 0;
    }
  }
}

void Fill(Call& call) {
  Tensor dims, value, o;
  if (!call.In(0, &dims, /*host=*/true) || !call.In(1, &value)) return;
  Dims out(dims.n());
  for (size_t i = 0; i < out.size(); ++i) out[i] = dims.index(i);
  if (!call.Out(0, TF_FLOAT, out, &o)) return;
  std::fill(o.f(), o.f() + o.n(), value.f()[0]);
}

}  // namespace

void RegisterShapes() {
  const TF_DataType F = TF_FLOAT, I = TF_INT32, L = TF_INT64;
  for (TF_DataType index : {I, L}) {
    Register({"Transpose", Transpose, {{"T", F}, {"Tperm", index}}, {"perm"}});
    Register({"Fill", Fill, {{"T", F}, {"index_type", index}}, {"dims"}});
    Register({"Tile", Tile, {{"T", F}, {"Tmultiples", index}}, {"multiples"}});
    Register({"ConcatV2", Concat, {{"T", F}, {"Tidx", index}}, {"axis"}});
    Compute sum = index == I ? SegmentSum<int32_t> : SegmentSum<int64_t>;
    Register({"UnsortedSegmentSum", sum, {{"T", F}, {"Tindices", index}},
              {"num_segments"}});
    for (TF_DataType axis : {I, L}) {
      Compute gather = index == I ? Gather<int32_t> : Gather<int64_t>;
      Definition def{"GatherV2", gather,
                     {{"Tparams", F}, {"Tindices", index}, {"Taxis", axis}},
                     {"axis"}};
      def.ints = {"batch_dims"};
      Register(def);
    }
  }
  Definition split{"Split", Split, {{"T", F}}, {"split_dim"}};
  split.ints = {"num_split"};
  Register(split);
}

}  // namespace stub
