// The StreamExecutor side: memory, copies, streams, and the grappler settings.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "stub.h"
#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

// Opaque handles that the plugin owns.
struct SP_Stream_st {
  int id;
};
struct SP_Event_st {
  bool recorded;
};
struct SP_Timer_st {
  uint64_t start, stop;
};

namespace stub {
namespace {

using Device = const SP_Device*;
using Memory = SP_DeviceMemoryBase*;
using ConstMemory = const SP_DeviceMemoryBase*;
using Status = TF_Status*;

void Allocate(Device, uint64_t size, int64_t, Memory mem) {
  mem->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  // 64 bytes: TensorFlow's own DEVICE_DEFAULT kernels run Eigen on this memory.
  uint64_t rounded = (size + 63) & ~uint64_t{63};
  void* p = rounded ? aligned_alloc(64, rounded) : nullptr;
  mem->opaque = p;
  mem->size = p ? size : 0;
  mem->payload = 0;
  if (!p) return;
  auto& c = Count();
  std::lock_guard<std::mutex> lock(c.mu);
  c.blocks[reinterpret_cast<uintptr_t>(p)] = rounded;
}
void Deallocate(Device, Memory mem) {
  if (!mem->opaque) return;
  {
    auto& c = Count();
    std::lock_guard<std::mutex> lock(c.mu);
    c.blocks.erase(reinterpret_cast<uintptr_t>(mem->opaque));
  }
  free(mem->opaque);
  mem->opaque = nullptr;
  mem->size = 0;
}
void* HostAllocate(Device, uint64_t size) {
  // 256 bytes: TensorFlow 2.22 demands it of what it divides further.
  uint64_t rounded = (size + 255) & ~uint64_t{255};
  return aligned_alloc(256, rounded ? rounded : 256);
}
void HostDeallocate(Device, void* p) { free(p); }
TF_Bool AllocatorStats(Device, SP_AllocatorStats* stats) {
  stats->struct_size = SP_ALLOCATORSTATS_STRUCT_SIZE;
  return true;  // as tensorflow-metal 1.2.0: true, and nothing written
}
TF_Bool MemoryUsage(Device, int64_t* free_bytes, int64_t* total) {
  *free_bytes = *total = int64_t{4} << 30;
  return true;
}

void CreateStream(Device, SP_Stream* s, Status st) {
  *s = new SP_Stream_st{0};
  Ok(st);
}
void DestroyStream(Device, SP_Stream s) { delete s; }
void StreamDependency(Device, SP_Stream, SP_Stream, Status st) { Ok(st); }
void StreamStatus(Device, SP_Stream, Status st) { Ok(st); }
void CreateEvent(Device, SP_Event* e, Status st) {
  *e = new SP_Event_st{false};
  Ok(st);
}
void DestroyEvent(Device, SP_Event e) { delete e; }
SE_EventStatus EventStatus(Device, SP_Event) { return SE_EVENT_COMPLETE; }
void RecordEvent(Device, SP_Stream, SP_Event e, Status st) {
  e->recorded = true;
  Ok(st);
}
void WaitEvent(Device const, SP_Stream, SP_Event, Status const st) { Ok(st); }
void CreateTimer(Device, SP_Timer* t, Status st) {
  *t = new SP_Timer_st{0, 0};
  Ok(st);
}
void DestroyTimer(Device, SP_Timer t) { delete t; }
void StartTimer(Device, SP_Stream, SP_Timer t, Status st) {
  t->start = NowNs();
  Ok(st);
}
void StopTimer(Device, SP_Stream, SP_Timer t, Status st) {
  t->stop = NowNs();
  Ok(st);
}
uint64_t TimerNs(SP_Timer t) { return t->stop - t->start; }

enum Direction { kH2D, kD2H, kD2D };
void Copy(Direction way, void* dst, const void* src, uint64_t n, Status st) {
  static const int slow_us = atoi(Env("METALSTUB_SLOW_COPY_US", "0").c_str());
  if (slow_us && way == kH2D && n >= 1024)
    std::this_thread::sleep_for(std::chrono::microseconds(slow_us));
  memcpy(dst, src, n);
  auto& c = Count();
  std::lock_guard<std::mutex> lock(c.mu);
  int64_t* counts[] = {&c.h2d, &c.d2h, &c.d2d};
  int64_t* bytes[] = {&c.h2d_bytes, &c.d2h_bytes, &c.d2d_bytes};
  ++*counts[way];
  *bytes[way] += n;
  if (st) Ok(st);
}
void D2H(Device, SP_Stream, void* dst, ConstMemory src, uint64_t n,
         Status st) {
  Copy(kD2H, dst, src->opaque, n, st);
}
void H2D(Device, SP_Stream, Memory dst, const void* src, uint64_t n,
         Status st) {
  Copy(kH2D, dst->opaque, src, n, st);
}
void D2D(Device, SP_Stream, Memory dst, ConstMemory src, uint64_t n,
         Status st) {
  Copy(kD2D, dst->opaque, src->opaque, n, st);
}
void SyncD2H(Device, void* dst, ConstMemory src, uint64_t n, Status st) {
  Copy(kD2H, dst, src->opaque, n, st);
}
void SyncH2D(Device, Memory dst, const void* src, uint64_t n, Status st) {
  Copy(kH2D, dst->opaque, src, n, st);
}
void SyncD2D(Device, Memory dst, ConstMemory src, uint64_t n, Status st) {
  Copy(kD2D, dst->opaque, src->opaque, n, st);
}
void BlockEvent(Device, SP_Event, Status st) { Ok(st); }
void BlockDone(Device, SP_Stream, Status st) { Ok(st); }
void SyncAll(Device, Status st) { Ok(st); }
void MemZero(Device, SP_Stream, Memory m, uint64_t n, Status st) {
  memset(m->opaque, 0, n);
  Ok(st);
}
void MemSet(Device, SP_Stream, Memory m, uint8_t v, uint64_t n, Status st) {
  memset(m->opaque, v, n);
  Ok(st);
}
void MemSet32(Device, SP_Stream, Memory m, uint32_t v, uint64_t n, Status st) {
  auto* p = static_cast<uint32_t*>(m->opaque);
  std::fill(p, p + n / 4, v);
  Ok(st);
}
TF_Bool HostCallback(Device, SP_Stream, SE_StatusCallbackFn fn, void* arg) {
  TF_Status* st = TF_NewStatus();
  fn(arg, st);  // all that came before it is done already
  bool ok = TF_GetCode(st) == TF_OK;
  TF_DeleteStatus(st);
  return ok;
}

int32_t NumaNode(Device) { return 0; }
int64_t Bandwidth(Device) { return -1; }
double Gflops(Device) { return -1; }

void DeviceCount(const SP_Platform*, int* n, Status st) {
  *n = atoi(Env("METALSTUB_DEVICES", "1").c_str());
  Ok(st);
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* p, Status st) {
  p->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  p->device->ordinal = p->ordinal;
  p->device->hardware_name = "Metal";
  p->device->device_vendor = "Stand-in";
  p->device->pci_bus_id = "";
  Ok(st);
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}
void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* p,
                     Status st) {
  p->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  p->device_fns->get_numa_node = NumaNode;
  p->device_fns->get_memory_bandwidth = Bandwidth;
  p->device_fns->get_gflops = Gflops;
  Ok(st);
}
void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}
void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* p,
                    Status st) {
  SP_StreamExecutor* s = p->stream_executor;
  s->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  s->allocate = Allocate;
  s->deallocate = Deallocate;
  s->host_memory_allocate = HostAllocate;
  s->host_memory_deallocate = HostDeallocate;
  s->unified_memory_allocate = HostAllocate;
  s->unified_memory_deallocate = HostDeallocate;
  s->get_allocator_stats = AllocatorStats;
  s->device_memory_usage = MemoryUsage;
  s->create_stream = CreateStream;
  s->destroy_stream = DestroyStream;
  s->create_stream_dependency = StreamDependency;
  s->get_stream_status = StreamStatus;
  s->create_event = CreateEvent;
  s->destroy_event = DestroyEvent;
  s->get_event_status = EventStatus;
  s->record_event = RecordEvent;
  s->wait_for_event = WaitEvent;
  s->create_timer = CreateTimer;
  s->destroy_timer = DestroyTimer;
  s->start_timer = StartTimer;
  s->stop_timer = StopTimer;
  s->memcpy_dtoh = D2H;
  s->memcpy_htod = H2D;
  s->memcpy_dtod = D2D;
  s->sync_memcpy_dtoh = SyncD2H;
  s->sync_memcpy_htod = SyncH2D;
  s->sync_memcpy_dtod = SyncD2D;
  s->block_host_for_event = BlockEvent;
  s->block_host_until_done = BlockDone;
  s->synchronize_all_activity = SyncAll;
  s->mem_zero = MemZero;
  s->memset = MemSet;
  s->memset32 = MemSet32;
  s->host_callback = HostCallback;
  Ok(st);
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}
void CreateTimerFns(const SP_Platform*, SP_TimerFns* t, Status st) {
  t->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  t->nanoseconds = TimerNs;
  Ok(st);
}
void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}
void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFns(SP_PlatformFns*) {}

}  // namespace
}  // namespace stub

EXPORT void SE_InitPlugin(SE_PlatformRegistrationParams* p, TF_Status* st) {
  using namespace stub;
  p->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  p->platform->name = "METAL";
  p->platform->type = DeviceType();
  p->platform->supports_unified_memory = 0;
  p->platform->use_bfc_allocator = 0;
  p->platform->force_memory_growth = 0;
  p->platform_fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  p->platform_fns->get_device_count = DeviceCount;
  p->platform_fns->create_device = CreateDevice;
  p->platform_fns->destroy_device = DestroyDevice;
  p->platform_fns->create_device_fns = CreateDeviceFns;
  p->platform_fns->destroy_device_fns = DestroyDeviceFns;
  p->platform_fns->create_stream_executor = CreateExecutor;
  p->platform_fns->destroy_stream_executor = DestroyExecutor;
  p->platform_fns->create_timer_fns = CreateTimerFns;
  p->platform_fns->destroy_timer_fns = DestroyTimerFns;
  p->destroy_platform = DestroyPlatform;
  p->destroy_platform_fns = DestroyPlatformFns;
  Ok(st);
}

// tensorflow-metal switches these two of TensorFlow's graph passes off.
EXPORT void TF_InitGraph(TP_OptimizerRegistrationParams* p, TF_Status* st) {
  p->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  p->device_type = stub::DeviceType();
  p->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  p->optimizer_configs->layout_optimizer = TF_TriState_Off;
  p->optimizer_configs->remapping = TF_TriState_Off;
  p->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  p->optimizer->optimize_func = stub::Optimize;
  stub::Ok(st);
}
