// The plugin's own graph pass. tensorflow-metal makes one op of a matrix
// product, its bias and its activation; with METALSTUB_FUSE so does this one,
// for MatMul, BiasAdd and Relu. Without it the pass changes nothing.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "stub.h"
#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace stub {
namespace {

using Node = tensorflow::NodeDef;

// A function of the library that TensorFlow has loaded already; to link with
// that one takes longer than all the rest.
template <class Function>
Function* Loaded(const char* name) {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// What is fed or fetched must stay.
std::set<std::string> Preserved(const TF_GrapplerItem* item, TF_Status* st) {
  static auto* size_of =
      Loaded<decltype(TF_GetNodesToPreserveListSize)>(
          "TF_GetNodesToPreserveListSize");
  static auto* list =
      Loaded<decltype(TF_GetNodesToPreserveList)>("TF_GetNodesToPreserveList");
  int count = 0;
  size_t size = 0;
  size_of(item, &count, &size, st);
  std::vector<char*> values(count);
  std::vector<size_t> lengths(count);
  std::vector<char> storage(size);
  if (TF_GetCode(st) == TF_OK)
    list(item, values.data(), lengths.data(), count, storage.data(), size, st);
  std::set<std::string> names;
  if (TF_GetCode(st) == TF_OK)
    for (int i = 0; i < count; ++i) names.emplace(values[i], lengths[i]);
  return names;
}

std::string Producer(const std::string& input) {
  return input.substr(input[0] == '^', input.find(':') - (input[0] == '^'));
}

void MoveControls(const Node& from, std::vector<std::string>* to) {
  for (auto& input : from.input())
    if (input[0] == '^') to->push_back(input);
}

void FuseDense(tensorflow::GraphDef* graph, const std::set<std::string>& kept) {
  const std::string here = std::string("device:") + DeviceType() + ":";
  std::map<std::string, Node*> nodes;
  std::map<std::string, int> uses;
  for (auto& node : *graph->mutable_node()) {
    nodes[node.name()] = &node;
    for (auto& input : node.input()) ++uses[Producer(input)];
  }
  // A node's first producer, if it is such an op on the device.
  auto before = [&](const Node& node, const char* op) -> Node* {
    auto found = nodes.find(Producer(node.input(0)));
    if (found == nodes.end()) return nullptr;
    Node* it = found->second;
    bool fits = it->op() == op && it->device() == node.device() &&
                uses[it->name()] == 1 && !kept.count(it->name()) &&
                it->attr().at("T").type() == tensorflow::DT_FLOAT;
    return fits ? it : nullptr;
  };
  std::set<std::string> gone;
  for (auto& relu : *graph->mutable_node()) {
    if (relu.op() != "Relu" || relu.device().find(here) == std::string::npos)
      continue;
    Node* bias = before(relu, "BiasAdd");
    Node* product = bias ? before(*bias, "MatMul") : nullptr;
    if (!product) continue;
    std::vector<std::string> inputs = {product->input(0), product->input(1),
                                       bias->input(1)};
    for (const Node* node : {product, bias, static_cast<Node*>(&relu)})
      MoveControls(*node, &inputs);
    relu.set_op("_FusedMatMul");
    relu.mutable_input()->Assign(inputs.begin(), inputs.end());
    auto& attr = *relu.mutable_attr();
    for (const char* key : {"transpose_a", "transpose_b"})
      attr[key] = product->attr().at(key);
    attr["num_args"].set_i(1);
    for (const char* op : {"BiasAdd", "Relu"})
      attr["fused_ops"].mutable_list()->add_s(op);
    gone.insert({product->name(), bias->name()});
  }
  auto* list = graph->mutable_node();
  for (int i = list->size() - 1; i >= 0; --i)
    if (gone.count(list->Get(i).name())) list->DeleteSubrange(i, 1);
}

}  // namespace

void Optimize(void*, const TF_Buffer* in, const TF_GrapplerItem* item,
              TF_Buffer* out, TF_Status* st) {
  static const bool fuses = !Env("METALSTUB_FUSE", "").empty();
  Ok(st);
  std::string text(static_cast<const char*>(in->data), in->length);
  if (fuses) {
    auto kept = Preserved(item, st);
    tensorflow::GraphDef graph;
    if (TF_GetCode(st) == TF_OK && graph.ParseFromArray(in->data, in->length)) {
      FuseDense(&graph, kept);
      text = graph.SerializeAsString();
    }
  }
  void* copy = malloc(text.size());
  memcpy(copy, text.data(), text.size());
  out->data = copy;
  out->length = text.size();
  out->data_deallocator = [](void* p, size_t) { free(p); };
}

}  // namespace stub
