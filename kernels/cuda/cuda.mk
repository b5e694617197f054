# Builds the CUDA device: with nvcc and cuDNN's headers the real device, in EMULATED configurations the same sources on
# the CPU (test/emu), otherwise only the planning part. Sets CUDA_O and CUDA_LIBS.
# CUDA=0|1            without or with CUDA; default: with, if nvcc and cuDNN are found, in release and debug
# CUDA_ARCHS="80 86"  machine code for these and PTX of the last; default: the GPUs of this machine, or one architecture
#                     of each generation if there is none (code of 8.0 runs on all 8.x, of 12.0 on all 12.x)
# make cuda-all       for all supported architectures, in build/release-all
# CUDA_STRICT=1       turns nvcc warnings into errors, for kernel development
CUDA_ARCHS_ALL := 80 86 89 90 100 120
CUDA_ARCHS_HERE = $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^([89]|1[0-9])\.[0-9]$$')))

CUDA_PLANS := cards costs work
CUDA_HOST := device gpu_errors gpus pages streams
CUDA_KERNELS := $(patsubst kernels/cuda/%.cu,%,$(sort $(wildcard kernels/cuda/*.cu)))

NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDNN_HEADER := $(firstword $(wildcard $(CUDA_HOME)/include/cudnn.h /usr/include/cudnn.h /usr/include/*/cudnn.h))
ifneq ($(filter release debug,$(CONFIG)),)
CUDA ?= $(if $(and $(NVCC),$(CUDNN_HEADER),$(shell command -v g++)),1,0)
endif

ifneq ($(EMULATED),)
override CUDA := 0
CUDA_OBJECTS := $(CUDA_PLANS) $(CUDA_HOST) $(CUDA_KERNELS)
EMU_O := $(patsubst test/emu/%.c,$B/obj/test/emu/%.o,$(wildcard test/emu/*.c)) \
         $(patsubst test/emu/%.cc,$B/obj/test/emu/%.o,$(wildcard test/emu/*.cc))
CXX := g++
CXXFLAGS := $(filter-out -std=% -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS)) -std=c++17 -Wno-missing-field-initializers \
            -Wno-unused-function -Wno-unknown-pragmas
$B/obj/kernels/cuda/%.o $B/obj/test/emu/%.o: CFLAGS += -Itest/emu
# CONFIG=emu checks undefined behaviour of kernels; here it is off because both sanitizers double the compile time.
$B/obj/kernels/cuda/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	@echo "  c++ $@"
	@$(CXX) -x c++ $(patsubst -fsanitize=address%,-fsanitize=address,$(CXXFLAGS)) -Itest/emu -MMD -MP -c -o $@ $<
# The fiber switching code is never instrumented; a macro names the active sanitizer.
$B/obj/test/emu/%.o: test/emu/%.cc
	@mkdir -p $(@D)
	@echo "  c++ $@"
	@$(CXX) $(filter-out -fsanitize% -fno-sanitize% -O%,$(CXXFLAGS)) -O2 $(if $(filter asan,$(CONFIG)),-DEMU_ASAN) \
	    $(if $(filter tsan,$(CONFIG)),-DEMU_TSAN) -Itest/emu -MMD -MP -c -o $@ $<
CUDA_LIBS := -lstdc++
else ifeq ($(CUDA),1)
ifeq ($(and $(NVCC),$(CUDNN_HEADER)),)
$(error CUDA=1, but $(if $(NVCC),cudnn.h,nvcc) was not found)
endif
CUDA_OBJECTS := $(CUDA_PLANS) $(CUDA_HOST) library cublaslt cudnn nvml $(CUDA_KERNELS)
CUDA_ARCHS_USUAL := 80 90 120
CUDA_ARCHS ?= $(or $(CUDA_ARCHS_HERE),$(CUDA_ARCHS_USUAL))
# Kernels need 8.0 or later.
CUDA_KNOWN := $(patsubst sm_%,%,$(filter-out sm_5% sm_6% sm_7%,$(shell $(NVCC) --list-gpu-code)))
CUDA_BUILT := $(filter $(CUDA_KNOWN),$(CUDA_ARCHS))
ifneq ($(strip $(CUDA_ARCHS)),$(CUDA_BUILT))
$(info cuda: this nvcc does not support $(patsubst %,sm_%,$(filter-out $(CUDA_BUILT),$(CUDA_ARCHS))): skipped)
endif
# Without any -gencode, nvcc would compile for an architecture that the kernels do not support.
ifeq ($(CUDA_BUILT),)
CUDA_BUILT := $(filter $(CUDA_KNOWN),$(CUDA_ARCHS_USUAL))
$(if $(CUDA_BUILT),$(info cuda: CUDA_ARCHS has no supported architecture: building for $(CUDA_BUILT:%=sm_%)),$(error cuda: $(NVCC) supports none of $(CUDA_ARCHS_USUAL:%=sm_%): install CUDA 12.8 or later, or use CUDA=0))
endif
# Also PTX of 9.0: GPUs between two generations (10.x) cannot use newer PTX.
CUDA_PTX := $(sort $(filter 90,$(CUDA_BUILT)) $(lastword $(CUDA_BUILT)))
CUDA_CODE := $(foreach arch,$(CUDA_BUILT),-gencode arch=compute_$(arch),code=sm_$(arch)) \
             $(foreach arch,$(CUDA_PTX),-gencode arch=compute_$(arch),code=compute_$(arch))
# Register spills are warnings, and errors with CUDA_STRICT. No fast math: approximations are explicit (ptx.cuh). nvcc's
# launch stubs have local statics whose guards would need the C++ library; only one thread launches.
NVCCFLAGS := -std=c++17 -O3 -lineinfo -I. -ccbin $(CC) $(CUDA_CODE) $(if $(CUDA_STRICT),-Werror all-warnings) -Xptxas -warn-spills,-warn-lmem-usage \
             -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wno-missing-field-initializers,-Wno-unused-function
$B/obj/kernels/cuda/%.o: CFLAGS += -isystem $(CUDA_HOME)/include -isystem $(dir $(CUDNN_HEADER))
$B/obj/kernels/cuda/%.o: kernels/cuda/%.cu $B/cuda.code
	@mkdir -p $(@D)
	@echo "  nvcc $@"
	@$(NVCC) $(NVCCFLAGS) -MD -MP -MF $(@:.o=.d) -c -o $@ $<
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -ldl
else
CUDA_OBJECTS := $(CUDA_PLANS) no_cuda
endif

# Tells gpus.c which machine code exists, so that the program can report when the driver must compile PTX.
$B/obj/kernels/cuda/gpus.o: CFLAGS += $(if $(CUDA_BUILT),-DCUDA_MACHINE_CODE='"$(CUDA_BUILT)"')
$B/obj/kernels/cuda/gpus.o: $B/cuda.code

CUDA_O := $(CUDA_OBJECTS:%=$B/obj/kernels/cuda/%.o) $(EMU_O)
# Stamp files that force a rebuild when CUDA=0|1 or the architectures change.
keep = $(shell mkdir -p $B; echo '$2' | cmp -s - $B/$1 || echo '$2' >$B/$1)
$(call keep,cuda.objects,$(CUDA_OBJECTS))$(call keep,cuda.code,$(CUDA_CODE))
CUDA_SAID = $(if $(filter 1,$(CUDA)),for GPUs with $(shell $(NVCC) --version | sed -n 's/.*release \([^,]*\),.*/nvcc \1/p'): machine code for $(CUDA_BUILT:%=sm_%)$(comma) \
    PTX of $(CUDA_PTX:%=compute_%),for \
    $(if $(EMULATED),the emulator,the CPU alone: $(if $(NVCC),$(if $(CUDNN_HEADER),CUDA=$(CUDA),nvcc without cudnn.h),no nvcc)))
-include $(CUDA_O:.o=.d)

.PHONY: cuda-all
cuda-all:
	@$(MAKE) --no-print-directory CONFIG=release CUDA=1 'CUDA_ARCHS=$(CUDA_ARCHS_ALL)' B=build/release-all build/release-all/sluice

# Checks that no kernel has an empty body, in the PTX of every architecture that this nvcc knows.
.PHONY: kernel-bodies
kernel-bodies:
	@sh bench/gpu/kernel_bodies.sh '$(NVCC) -std=c++17 -I. -ccbin $(CC)' $B/kernel_bodies $(CUDA_KNOWN)

# Prints ptxas statistics of each kernel and checks for spills and empty kernels; for CUDA_ARCHS, by default all
# supported. Needs cuobjdump, no GPU.
SASS_ARCHS := $(if $(filter command environment,$(origin CUDA_ARCHS)),$(CUDA_ARCHS),$(CUDA_ARCHS_ALL))
SASS_LOGS := $(foreach arch,$(SASS_ARCHS),$(CUDA_KERNELS:%=$B/sass/%.$(arch).log))
$B/sass/%.log:
	@mkdir -p $(@D)
	@$(NVCC) -std=c++17 -O3 -I. -ccbin $(CC) -arch=sm_$(lastword $(subst ., ,$*)) -cubin -Xptxas -v -o $B/sass/$*.cubin \
	    kernels/cuda/$(firstword $(subst ., ,$*)).cu 2>$@.part || { cat $@.part; exit 1; }
	@mv $@.part $@
$(foreach kernel,$(CUDA_KERNELS),$(foreach arch,$(SASS_ARCHS),$(eval $B/sass/$(kernel).$(arch).log: kernels/cuda/$(kernel).cu $(wildcard kernels/cuda/*.cuh kernels/cuda/*.h))))
.PHONY: sass
sass: $(SASS_LOGS)
	@sh bench/gpu/sass.sh $B/sass $(SASS_ARCHS)
