# Tests of the CUDA device: the same programs run on a GPU (release or debug with CUDA=1) and, without CUDA, on the emulator
# (CONFIG=emu, asan, tsan). The thread sanitizer build has no oneDNN, so it skips cuda_gate, cuda_weights and cuda_work, which
# compute on the CPU too.
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

# Links the emulator's objects by name instead of an archive: the tests use weak symbols, for which the linker searches
# no archive.
$(CUDA_TESTS:%=$B/test_cuda_%): $(CUDA_TEST_O) $(EMU_O)

.PHONY: cuda-tests
cuda-tests: $(patsubst %,$B/test_cuda_%,$(if $(filter tsan,$(CONFIG)),$(filter-out gate weights work,$(CUDA_TESTS)),$(CUDA_TESTS))) $(if $(EMULATED),$B/emu_self)

# Prints whether the CUDA toolkit was found and which GPUs the build supports.
.PHONY: cuda-said
cuda-said:
	@echo "cuda: built $(CUDA_SAID)"

-include $(CUDA_TEST_O:.o=.d)

# Builds the test of the cuBLASLt and cuDNN wrappers against fake libraries (library_fakes.c); needs CUDA's headers.
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
