// As much of the driver's library of management as torch asks for: expandable segments do. A library of its
// own, as it is looked for by its name.
extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int some;
  *device = &some;
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

// There is none: what is asked for stays zero.
int nvmlDeviceGetGpuFabricInfoV(void*, void*) {
  return 0;
}
// Not supported.
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) {
  return 3;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) {
  return 3;
}

}  // extern "C"
