# Builds a folder for machines with a GPU that needs nothing else of this tree.
# make gpu-bundle   build/gpu-bundle.tar.xz, for a machine with a driver and CUDA's libraries, without network or packages
# make try-gpu      on a machine with a GPU: the important parts within 30 minutes. Results in build/gpu-results
# make check-gpu    checks; make bench-gpu: benchmarks. The exit status is run.sh's verdict
# make readme       updates generated tables: GPU results in bench/README.md, families in models/README.md
# make CONFIG=emu gpu-stage    the same folder with the emulated device, to try the script: sh build/emu/gpu/run.sh OUT all --small
GPU_TOOLS := device_bench fill_gpu gpu_results
GPU_PROGRAMS := sluice sluice-dev test_golden test_blocks $(CUDA_TESTS:%=test_cuda_%) $(GPU_TOOLS)
GPU_BUNDLE_BYTES := 52428800
RIG_O := $(patsubst %,$B/obj/bench/gpu/%.o,calculated device_bench library_rates memory_calls operators rig)
RESULTS_O := $(patsubst %,$B/obj/bench/gpu/%.o,fitness gpu_results parts tables verdict)
# rpath instead of LD_LIBRARY_PATH, because other programs there would also load our libraries.
ifeq ($(GPU_STAGE),1)
LDFLAGS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'
endif

$(RIG_O) $B/obj/bench/gpu/fill.o: CFLAGS += $(if $(EMULATED),-Itest/emu,-isystem $(CUDA_HOME)/include)
$B/device_bench: $(RIG_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/fill_gpu: $B/obj/bench/gpu/fill.o $(if $(EMULATED),$(ENGINE_O))
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/gpu_results: $(RESULTS_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -ljansson

.PHONY: gpu-stage gpu-build gpu-bundle try-gpu check-gpu bench-gpu readme
# The file `driver`: the oldest driver release for this build, by the major version of CUDA. CUDA's release notes, "CUDA
# Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility": 12.x 525, 13.x 580. The emulator
# replaces CUDA 13.
GPU_CUDA = $(if $(EMULATED),13,$(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p'))
GPU_DRIVER_12 := 525
GPU_DRIVER_13 := 580
gpu-stage: $(GPU_PROGRAMS:%=$B/%)
	@sh bench/gpu/stage.sh $B $B/gpu $(GPU_PROGRAMS)
	@echo $(or $(GPU_DRIVER_$(GPU_CUDA)),unknown) >$B/gpu/driver
gpu-build:
	@$(MAKE) --no-print-directory CONFIG=release CUDA=1 'CUDA_ARCHS=$(CUDA_ARCHS_ALL)' B=build/release-gpu GPU_STAGE=1 gpu-stage
gpu-bundle: gpu-build
	@tar -C build/release-gpu --owner=0 --group=0 --transform='s/^gpu/gpu-bundle/' -cf - gpu | xz -T0 --lzma2=preset=6,dict=64MiB >build/gpu-bundle.tar.xz
	@bytes=$$(stat -c %s build/gpu-bundle.tar.xz); echo "build/gpu-bundle.tar.xz: $$bytes bytes"; \
	    [ $$bytes -le $(GPU_BUNDLE_BYTES) ] || { echo "gpu-bundle: more than $(GPU_BUNDLE_BYTES) bytes"; exit 1; }
try-gpu:
	@nvidia-smi -L >/dev/null 2>&1 || { echo "try-gpu: no NVIDIA GPU or driver here (nvidia-smi -L fails): nothing was built"; exit 4; }
	@$(MAKE) --no-print-directory gpu-build
	@sh build/release-gpu/gpu/run.sh build/gpu-results --quick
check-gpu: gpu-build
	@sh build/release-gpu/gpu/run.sh build/gpu-results check
bench-gpu: gpu-build
	@sh build/release-gpu/gpu/run.sh build/gpu-results bench; verdict=$$?; cp build/gpu-results/*-20*.json bench/results/ && exit $$verdict
readme: $B/gpu_results $B/sluice
	@sh test/readme.sh write bench/README.md 'GPU results' $B/gpu_results readme bench/results/*.json
	@sh test/readme.sh write models/README.md families sh test/families.sh $B/sluice

-include $(RIG_O:.o=.d) $(RESULTS_O:.o=.d) $B/obj/bench/gpu/fill.d
