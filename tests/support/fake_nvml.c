/*
 * libnvidia-ml.so.1 for tests: the functions that Outrider calls, at the C ABI of NVIDIA's library.
 *
 * What it answers stands in the text file $FAKE_NVML_STATE, one `key value` a line, read anew at every call:
 *   driver 0                      not loaded: nvmlInit says DRIVER_NOT_LOADED, everything else UNINITIALIZED
 *   gpus N                        devices 0 to N-1; without it one
 *   G.lost 1                      device G has fallen off the bus: GPU_IS_LOST from every call about it
 *   G.temperature 71              any reading of device G, by the keys below; each has a usual value
 *   G.mig 2                       MIG is on, with so many instances; G.mig.I.used BYTES is the memory of one
 *   fail.FUNCTION CODE            that function returns CODE; fail.G.FUNCTION only for device G
 * XIDs are lines `G CODE [INSTANCE]` of $FAKE_NVML_STATE.events, reported in order to callers that wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
typedef struct { int gpu; int mig; } device_t; /* mig -1: the whole device */
typedef unsigned long long u64;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
#define GPUS 16
#define MIGS 8
#define NO_INSTANCE 0xFFFFFFFFu

static device_t whole[GPUS], parts[GPUS][MIGS];
static int ready;
static long events_read; /* bytes of the event file already reported */

static int lookup(const char *key, char *value, size_t size) {
    char line[256], name[128], text[128];
    int found = 0;
    FILE *file = fopen(getenv("FAKE_NVML_STATE") ? getenv("FAKE_NVML_STATE") : "", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %127[^\n]", name, text) == 2 && !strcmp(name, key)) {
            snprintf(value, size, "%s", text);
            found = 1;
        }
    fclose(file);
    return found;
}
static double number(const char *key, double usual) {
    char text[128];
    return lookup(key, text, sizeof text) ? atof(text) : usual;
}
static double of(int gpu, const char *key, double usual) {
    char name[96];
    snprintf(name, sizeof name, "%d.%s", gpu, key);
    return number(name, usual);
}
static int gpus(void) { return (int)number("gpus", 1); }

static ret_t may(const char *function) {
    char key[96];
    if (number("driver", 1) == 0) ready = 0;
    if (!ready) return UNINITIALIZED;
    snprintf(key, sizeof key, "fail.%s", function);
    return (ret_t)number(key, OK);
}
static ret_t about(const device_t *device, const char *function) {
    char key[96];
    ret_t result = may(function);
    if (result) return result;
    if (!device) return INVALID;
    if (of(device->gpu, "lost", 0)) return LOST;
    snprintf(key, sizeof key, "fail.%d.%s", device->gpu, function);
    return (ret_t)number(key, OK);
}
#define ASK(device) do { ret_t result = about(device, __func__); if (result) return result; } while (0)
#define READ(function, key, usual) \
    ret_t function(device_t *device, unsigned *value) { ASK(device); *value = (unsigned)of(device->gpu, key, usual); return OK; }

ret_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (number("driver", 1) == 0) return NO_DRIVER;
    if (number("fail.nvmlInitWithFlags", 0)) return (ret_t)number("fail.nvmlInitWithFlags", 0);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        whole[gpu] = (device_t){gpu, -1};
        for (int mig = 0; mig < MIGS; mig++) parts[gpu][mig] = (device_t){gpu, mig};
    }
    ready = 1;
    return OK;
}
ret_t nvmlShutdown(void) { ret_t result = ready ? OK : UNINITIALIZED; ready = 0; return result; }
const char *nvmlErrorString(ret_t code) { return code == LOST ? "GPU is lost" : "an error of the fake"; }
ret_t nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ret_t result = may(__func__);
    if (result) return result;
    char version[64] = "580.95.05";
    lookup("version", version, sizeof version);
    snprintf(text, size, "%s", version);
    return OK;
}
ret_t nvmlDeviceGetCount_v2(unsigned *count) { ret_t result = may(__func__); *count = result ? 0 : (unsigned)gpus(); return result; }
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    if (index >= (unsigned)gpus()) return INVALID;
    ASK(&whole[index]);
    *device = &whole[index];
    return OK;
}
ret_t nvmlDeviceGetUUID(device_t *device, char *text, unsigned size) {
    ASK(device);
    if (device->mig < 0) snprintf(text, size, "GPU-%08d-1111-2222-3333-444444444444", device->gpu);
    else snprintf(text, size, "MIG-%08d-%04d-2222-3333-444444444444", device->gpu, device->mig);
    return OK;
}
ret_t nvmlDeviceGetName(device_t *device, char *text, unsigned size) {
    ASK(device);
    snprintf(text, size, device->mig < 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    return OK;
}
ret_t nvmlDeviceGetMinorNumber(device_t *device, unsigned *minor) { ASK(device); *minor = (unsigned)device->gpu; return OK; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
ret_t nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *pci) {
    ASK(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x3b + (unsigned)device->gpu;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
ret_t nvmlDeviceGetTemperature(device_t *device, unsigned sensor, unsigned *value) {
    (void)sensor;
    ASK(device);
    *value = (unsigned)of(device->gpu, "temperature", 45);
    return OK;
}
typedef struct { unsigned version, sensor; int celsius; } temperature_t;
ret_t nvmlDeviceGetTemperatureV(device_t *device, temperature_t *value) {
    ASK(device);
    value->celsius = (int)of(device->gpu, "temperature", 45);
    return OK;
}
READ(nvmlDeviceGetPowerUsage, "milliwatts", 312500)
READ(nvmlDeviceGetPowerManagementLimit, "limit_milliwatts", 700000)
READ(nvmlDeviceGetEnforcedPowerLimit, "limit_milliwatts", 700000)
READ(nvmlDeviceGetPcieReplayCounter, "replays", 3)
READ(nvmlDeviceGetCurrPcieLinkGeneration, "link_generation", 5)
READ(nvmlDeviceGetCurrPcieLinkWidth, "link_width", 16)
ret_t nvmlDeviceGetTotalEnergyConsumption(device_t *device, u64 *value) { ASK(device); *value = (u64)of(device->gpu, "millijoules", 9000000); return OK; }
ret_t nvmlDeviceGetCurrentClocksEventReasons(device_t *device, u64 *value) { ASK(device); *value = (u64)of(device->gpu, "reasons", 4); return OK; }
ret_t nvmlDeviceGetClockInfo(device_t *device, unsigned type, unsigned *value) {
    ASK(device);
    *value = (unsigned)of(device->gpu, type == 1 ? "sm_megahertz" : "memory_megahertz", type == 1 ? 1980 : 2619);
    return OK;
}
typedef struct { unsigned gpu, memory; } utilization_t;
ret_t nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *value) {
    ASK(device);
    if (device->mig >= 0 || of(device->gpu, "mig", 0)) return UNSUPPORTED;
    value->gpu = (unsigned)of(device->gpu, "percent", 87);
    value->memory = (unsigned)of(device->gpu, "memory_percent", 41);
    return OK;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_t;
ret_t nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_t *value) {
    char key[32] = "used";
    ASK(device);
    if (device->mig >= 0) snprintf(key, sizeof key, "mig.%d.used", device->mig);
    value->total = device->mig < 0 ? 81920ull << 20 : 9856ull << 20;
    value->reserved = device->mig < 0 ? 512ull << 20 : 16ull << 20;
    value->used = (u64)of(device->gpu, key, 1024.0 * 1024 * 1024);
    value->free = value->total - value->reserved - value->used;
    return OK;
}
typedef struct { u64 reference, violation; } violation_t;
ret_t nvmlDeviceGetViolationStatus(device_t *device, unsigned policy, violation_t *value) {
    char key[32];
    ASK(device);
    snprintf(key, sizeof key, "violation.%u", policy);
    value->violation = (u64)of(device->gpu, key, 1000.0 * (policy + 1));
    return OK;
}
ret_t nvmlDeviceGetTotalEccErrors(device_t *device, unsigned type, unsigned counter, u64 *value) {
    char key[32];
    ASK(device);
    snprintf(key, sizeof key, "ecc.%s.%s", type ? "double" : "single", counter ? "lifetime" : "volatile");
    *value = (u64)of(device->gpu, key, 0);
    return OK;
}
ret_t nvmlDeviceGetRemappedRows(device_t *device, unsigned *fair, unsigned *hard, unsigned *pending, unsigned *failed) {
    ASK(device);
    *fair = (unsigned)of(device->gpu, "rows.correctable", 1);
    *hard = (unsigned)of(device->gpu, "rows.uncorrectable", 0);
    *pending = (unsigned)of(device->gpu, "rows.pending", 0);
    *failed = (unsigned)of(device->gpu, "rows.failed", 0);
    return OK;
}
typedef struct { unsigned id, scope; long long at, took; int type; ret_t result; union { double real; unsigned whole; u64 large; } value; } field_t;
ret_t nvmlDeviceGetFieldValues(device_t *device, int count, field_t *fields) {
    char key[32];
    ASK(device);
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field.%u", fields[i].id);
        double value = of(device->gpu, key, -1);
        fields[i].result = value < 0 ? UNSUPPORTED : OK;
        fields[i].type = 3;
        fields[i].value.large = (u64)value;
    }
    return OK;
}
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } process_t;
ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *processes) {
    ASK(device);
    int pid = (int)of(device->gpu, "pid", 0);
    if (!pid) { *count = 0; return OK; }
    if (!processes || !*count) { *count = 1; return SMALL; }
    *count = 1;
    processes[0] = (process_t){(unsigned)pid, 2048ull << 20, of(device->gpu, "mig", 0) ? 7 : NO_INSTANCE, NO_INSTANCE};
    return OK;
}

/* --- MIG ------------------------------------------------------------------------------------------------ */
ret_t nvmlDeviceGetMigMode(device_t *device, unsigned *now, unsigned *later) { ASK(device); *now = *later = of(device->gpu, "mig", 0) > 0; return OK; }
ret_t nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *count) { ASK(device); *count = 7; return OK; }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned index, device_t **part) {
    ASK(device);
    if (index >= MIGS || index >= (unsigned)of(device->gpu, "mig", 0)) return NOT_FOUND;
    *part = &parts[device->gpu][index];
    return OK;
}
ret_t nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *id) { ASK(device); if (device->mig < 0) return INVALID; *id = 7 + (unsigned)device->mig; return OK; }

/* --- GPM ------------------------------------------------------------------------------------------------ */
typedef struct { int gpu, instance, number; } sample_t;
typedef struct { unsigned id; ret_t result; double value; const char *words[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
typedef struct { unsigned version, supported; } support_t;
static int samples;
ret_t nvmlGpmQueryDeviceSupport(device_t *device, support_t *value) { ASK(device); value->supported = of(device->gpu, "gpm", 1) > 0; return OK; }
ret_t nvmlGpmSampleAlloc(sample_t **sample) { *sample = calloc(1, sizeof **sample); return OK; }
ret_t nvmlGpmSampleFree(sample_t *sample) { free(sample); return OK; }
ret_t nvmlGpmSampleGet(device_t *device, sample_t *sample) { ASK(device); *sample = (sample_t){device->gpu, -1, ++samples}; return OK; }
ret_t nvmlGpmMigSampleGet(device_t *device, unsigned instance, sample_t *sample) { ASK(device); *sample = (sample_t){device->gpu, (int)instance, ++samples}; return OK; }
ret_t nvmlGpmMetricsGet(metrics_t *request) {
    char key[48];
    ret_t result = may(__func__);
    if (result) return result;
    if (request->version != 1 || request->first->number >= request->second->number) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        if (request->second->instance < 0) snprintf(key, sizeof key, "gpm.%u", request->metrics[i].id);
        else snprintf(key, sizeof key, "mig.%d.gpm.%u", request->second->instance - 7, request->metrics[i].id);
        double value = of(request->second->gpu, key, -1);
        request->metrics[i].result = value < 0 ? UNSUPPORTED : OK;
        request->metrics[i].value = value;
    }
    return OK;
}

/* --- events ----------------------------------------------------------------------------------------------- */
typedef struct { device_t *device; u64 type, value; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { int watched[GPUS]; } set_t;
ret_t nvmlEventSetCreate(set_t **set) { ret_t result = may(__func__); if (!result) *set = calloc(1, sizeof **set); return result; }
ret_t nvmlEventSetFree(set_t *set) { free(set); return OK; }
ret_t nvmlDeviceGetSupportedEventTypes(device_t *device, u64 *types) { ASK(device); *types = 8 | 1 | 2; return OK; }
ret_t nvmlDeviceRegisterEvents(device_t *device, u64 types, set_t *set) { ASK(device); if (types & 8) set->watched[device->gpu] = 1; return OK; }
ret_t nvmlEventSetWait_v2(set_t *set, event_t *event, unsigned milliseconds) {
    char path[512], line[128];
    ret_t result = may(__func__);
    if (result) return result;
    snprintf(path, sizeof path, "%s.events", getenv("FAKE_NVML_STATE") ? getenv("FAKE_NVML_STATE") : "");
    FILE *file = fopen(path, "r");
    if (file) {
        fseek(file, events_read, SEEK_SET);
        while (fgets(line, sizeof line, file)) {
            int gpu, code, instance = -1, read = sscanf(line, "%d %d %d", &gpu, &code, &instance);
            events_read = ftell(file);
            if (read < 2 || gpu < 0 || gpu >= GPUS || !set->watched[gpu]) continue;
            fclose(file);
            *event = (event_t){&whole[gpu], 8, (u64)code, instance < 0 ? NO_INSTANCE : (unsigned)instance, NO_INSTANCE};
            return OK;
        }
        fclose(file);
    }
    usleep(milliseconds * 1000);
    return TIMEOUT;
}
