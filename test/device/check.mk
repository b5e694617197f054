# Tests of the CUDA device: the same programs on a GPU (release or debug with CUDA=1) and on the CPU (CONFIG=emu, emu_asan),
# where they need no CUDA. Under the thread sanitizer (CONFIG=emu_tsan) as tsan_cuda_NAME, without oneDNN as all of tsan_; the
# gate needs whole models, and weights what the CPU makes of them: not there.
CUDA_TESTS := $(patsubst test/device/test_cuda_%.c,%,$(wildcard test/device/test_cuda_*.c))
CUDA_TEST_O := $B/obj/test/device/fragments.o
.SECONDARY: $(CUDA_TEST_O)

ifneq ($(filter emu%,$(CONFIG)),)
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

$B/test_cuda_%: test/device/test_cuda_%.c $(TEST_LIB) $(ENGINE_O) $B/cuda.objects $(CUDA_TEST_O)
	@echo "  ld $@"
	@$(CC) $(CFLAGS) -fvisibility=default -MMD -MP $(LDFLAGS) -o $@ $< $(TEST_LIB) $(ENGINE_O) $(CUDA_TEST_O) -lcmocka $(LIBS)

$B/tsan_cuda_%: test/device/test_cuda_%.c $(TEST_LIB) $(TSAN_O) $(CUDA_O) $(CUDA_TEST_O)
	@echo "  ld $@"
	@$(CC) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(TEST_LIB) $(TSAN_O) $(CUDA_O) $(CUDA_TEST_O) -lcmocka $(CUDA_LIBS) -lm -lpthread

.PHONY: cuda-tests
cuda-tests: $(if $(filter emu_tsan,$(CONFIG)),$(patsubst %,$B/tsan_cuda_%,$(filter-out gate weights,$(CUDA_TESTS))),$(CUDA_TESTS:%=$B/test_cuda_%)) \
    $(if $(filter emu%,$(CONFIG)),$B/emu_self)

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
