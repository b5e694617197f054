# Tests of the CUDA device: the same programs on a GPU (release or debug with CUDA=1) and on the CPU (CONFIG=emu, asan, tsan),
# where they need no CUDA. Not under the thread sanitizer, where there is no oneDNN: the gate, which needs whole models, and weights,
# which needs what the CPU makes of them.
CUDA_TESTS := $(patsubst test/device/test_cuda_%.c,%,$(wildcard test/device/test_cuda_*.c))
CUDA_TEST_O := $B/obj/test/device/fragments.o

ifneq ($(EMULATED),)
$B/obj/test/device/%.o: test/device/%.cu
	@mkdir -p $(@D)
	@echo "  c++ $@"
	@$(CXX) -x c++ $(CXXFLAGS) -Itest/emu -MMD -MP -c -o $@ $<
else
$B/obj/test/device/%.o: test/device/%.cu
	@mkdir -p $(@D)
	@echo "  nvcc $@"
	@$(NVCC) $(NVCCFLAGS) -MD -MP -MF $(@:.o=.d) -c -o $@ $<
endif

# The emulator's objects by name: what these tests ask it for are weak symbols, for which no archive is searched.
$(CUDA_TESTS:%=$B/test_cuda_%): $(CUDA_TEST_O) $(EMU_O)

.PHONY: cuda-tests
cuda-tests: $(patsubst %,$B/test_cuda_%,$(if $(filter tsan,$(CONFIG)),$(filter-out gate weights,$(CUDA_TESTS)),$(CUDA_TESTS))) $(if $(EMULATED),$B/emu_self)

# Whether the toolkit was there, and what was built with it.
.PHONY: cuda-said
cuda-said:
	@echo "cuda: built $(CUDA_SAID)"

-include $(CUDA_TEST_O:.o=.d)

# The doors to cuBLASLt and cuDNN before fakes of both: see doors.c. Wherever CUDA's headers are.
ifeq ($(CUDA),1)
DOORS := $B/doors
DOORS_FLAGS := $(BASE) $(CFLAGS_asan) -isystem $(CUDA_HOME)/include -isystem $(dir $(CUDNN_HEADER))
$(DOORS)/libcublasLt.so.13: test/device/fake_cublaslt.c
$(DOORS)/libcudnn.so.9: test/device/fake_cudnn.c
$(DOORS)/%:
	@mkdir -p $(@D)
	@echo "  ld $@"
	@$(CC) $(DOORS_FLAGS) -fvisibility=default -shared -o $@ $<
$(DOORS)/doors: test/device/doors.c $(wildcard kernels/cuda/*.[ch] engine/base/*.[ch])
	@mkdir -p $(@D)
	@echo "  ld $@"
	@$(CC) $(DOORS_FLAGS) -o $@ $< kernels/cuda/cublaslt.c kernels/cuda/cudnn.c kernels/cuda/library.c $(wildcard engine/base/*.c) \
	    -lcmocka -lm -lpthread -ldl
.PHONY: doors
doors: $(DOORS)/doors $(DOORS)/libcublasLt.so.13 $(DOORS)/libcudnn.so.9
	@LD_LIBRARY_PATH=$(DOORS) $(DOORS)/doors
endif
