# Tests of the CUDA device: the same programs on a GPU (release or debug with CUDA=1) and on the CPU (CONFIG=emu, asan, tsan),
# where they need no CUDA. Not under the thread sanitizer, where there is no oneDNN: the gate, which needs whole models, weights and work,
# which needs what the CPU makes of them.
CUDA_TESTS := $(patsubst test/device/test_cuda_%.c,%,$(wildcard test/device/test_cuda_*.c))
CUDA_TEST_O := $(patsubst test/device/%.cu,$B/obj/test/device/%.o,$(wildcard test/device/*.cu))

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
cuda-tests: $(patsubst %,$B/test_cuda_%,$(if $(filter tsan,$(CONFIG)),$(filter-out gate weights work,$(CUDA_TESTS)),$(CUDA_TESTS))) $(if $(EMULATED),$B/emu_self)

# Whether the toolkit was there, and what was built with it.
.PHONY: cuda-said
cuda-said:
	@echo "cuda: built $(CUDA_SAID)"

-include $(CUDA_TEST_O:.o=.d)

# What opens cuBLASLt and cuDNN before fakes of both: see library_fakes.c. Wherever CUDA's headers are.
ifeq ($(CUDA),1)
LIBRARY_FAKES := $B/library_fakes
LIBRARY_FAKES_FLAGS := $(BASE) $(CFLAGS_asan) -isystem $(CUDA_HOME)/include -isystem $(dir $(CUDNN_HEADER))
$(LIBRARY_FAKES)/libcublasLt.so.13: test/device/fake_cublaslt.c
$(LIBRARY_FAKES)/libcudnn.so.9: test/device/fake_cudnn.c
$(LIBRARY_FAKES)/%:
	@mkdir -p $(@D)
	@echo "  ld $@"
	@$(CC) $(LIBRARY_FAKES_FLAGS) -fvisibility=default -shared -o $@ $<
$(LIBRARY_FAKES)/library_fakes: test/device/library_fakes.c $(wildcard kernels/cuda/*.[ch] engine/base/*.[ch])
	@mkdir -p $(@D)
	@echo "  ld $@"
	@$(CC) $(LIBRARY_FAKES_FLAGS) -o $@ $< kernels/cuda/cublaslt.c kernels/cuda/cudnn.c kernels/cuda/library.c $(wildcard engine/base/*.c) \
	    -lcmocka -lm -lpthread -ldl
.PHONY: library_fakes
library_fakes: $(LIBRARY_FAKES)/library_fakes $(LIBRARY_FAKES)/libcublasLt.so.13 $(LIBRARY_FAKES)/libcudnn.so.9
	@LD_LIBRARY_PATH=$(LIBRARY_FAKES) $(LIBRARY_FAKES)/library_fakes
endif
