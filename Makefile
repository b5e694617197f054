# Sluice. One Makefile, one CONFIG, a build folder each.
#   make            the program and the libraries, build/release
#   make dev        build/release/sluice-dev: random checkpoints and the streaming study, for developers
#   make demo       installs what is missing, builds, draws a gallery
#   make test       installs what is missing, then make check
#   make check      format, include rules, tests in release, asan and tsan; make check-all: what takes longer
#   make test-NAME  one suite of test/suites
#   make install    to PREFIX (/usr/local) under DESTDIR, with ldconfig if DESTDIR is empty; make uninstall
# DNNL_PREFIX=FOLDER builds against the oneDNN in FOLDER/include and FOLDER/lib, in a build folder of its own.
CONFIG ?= release
comma := ,
.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC := gcc
endif
B := build/$(CONFIG)$(if $(DNNL_PREFIX),-$(notdir $(DNNL_PREFIX)))

WARN := -Wall -Wextra -Werror -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
# No contraction into fused multiply-adds and no fast-math: bits must not depend on what the compiler fancies.
# The folder of the clone stays out of what is built: two clones build the same bytes.
BASE := -std=c11 -D_GNU_SOURCE -fopenmp -ffp-contract=off -fvisibility=hidden -fPIC -I. $(WARN) \
        '-ffile-prefix-map=$(CURDIR)=.' $(addprefix -isystem ,$(addsuffix /include,$(DNNL_PREFIX)))
CFLAGS_release := -O3 -g
CFLAGS_debug   := -O0 -g
CFLAGS_asan    := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g1 -fsanitize=thread
CFLAGS_stress  := -O2 -g -DSLUICE_STRESS
CFLAGS_cov     := -O0 -g --coverage
CFLAGS_emu     := -O2 -g -fsanitize=undefined -fno-sanitize-recover=all
ifeq ($(CFLAGS_$(CONFIG)),)
$(error CONFIG=$(CONFIG) is not one of release debug asan tsan stress cov emu)
endif
# These have the CUDA device compiled for the CPU: see test/emu.
EMULATED := $(filter emu asan tsan,$(CONFIG))
CFLAGS := $(BASE) $(CFLAGS_$(CONFIG)) $(EXTRA_CFLAGS)
LDFLAGS := -fopenmp $(filter -fsanitize=% --coverage,$(CFLAGS_$(CONFIG)))
DNNL_LIBS := $(if $(DNNL_PREFIX),-L$(DNNL_PREFIX)/lib -Wl$(comma)-rpath$(comma)$(DNNL_PREFIX)/lib) -ldnnl
include kernels/cuda/cuda.mk
LIBS := $(CUDA_LIBS) $(DNNL_LIBS) -ljansson -lpcre2-8 -lutf8proc -lnettle -lm -lpthread
# Pictures whose libraries are there; without them the program refuses them by name.
has_header = $(shell printf '\#include <stdio.h>\n\#include <$1>\n' | $(CC) -E -x c - >/dev/null 2>&1 && echo $2)
PICTURES := $(call has_header,jpeglib.h,jpeg) $(call has_header,webp/decode.h,webp)
PICTURES_jpeg := -DPICTURES_JPEG
PICTURES_webp := -DPICTURES_WEBP
# Videos where FFmpeg's headers are; its libraries are loaded by who writes one. FFMPEG=0: not.
FFMPEG ?= $(call has_header,libavformat/avformat.h,$(call has_header,libavcodec/avcodec.h,$(call has_header,libswscale/swscale.h,1)))
CLI_LIBS := -lpng $(patsubst %,-l%,$(PICTURES)) -ljansson -lz

VERSION := $(shell sed -n 's/^\#define SLUICE_VERSION *"\(.*\)"/\1/p' engine/sluice.h)
SONAME := libsluice.so.$(firstword $(subst ., ,$(VERSION)))

# Half of the compile time of CONFIG=asan is optimisation. Only loops over values need it: kernels, loaders, the emulator.
ifeq ($(CONFIG),asan)
$(foreach folder,engine models cli bench test,$B/obj/$(folder)/%.o): CFLAGS += -O0
$B/obj/test/emu/%.o $B/obj/test/device/%.o: CFLAGS += -O1
endif

ENGINE := $(sort $(wildcard engine/*/*.c kernels/*.c $(patsubst %,kernels/%/*.c,dry cpu) loaders/*.c loaders/*/*.c models/*.c))
CLI := $(sort $(filter-out $(if $(filter 1,$(FFMPEG)),,cli/video_encode.c) $(patsubst %,cli/picture_%.c,$(filter-out $(PICTURES),jpeg webp)),$(wildcard cli/*.c)))
ENGINE_O := $(ENGINE:%.c=$B/obj/%.o) $(CUDA_O)
CLI_O := $(CLI:%.c=$B/obj/%.o)

.PHONY: all
all: $B/sluice $B/libsluice.a $B/libsluice.so

$(call keep,cli.objects,$(notdir $(CLI)))
$B/sluice: $(CLI_O) $B/libsluice.a $B/cli.objects
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $(CLI_O) $B/libsluice.a $(CLI_LIBS) $(LIBS)
	@echo "  built $(CUDA_SAID)"
# A hash of the sources is part of prompt cache keys: embeddings cached by another build are not reused.
SOURCES := $(shell find engine kernels loaders models -type f -name '*.[ch]*' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
$(call keep,sources,$(SOURCES))
$B/obj/engine/cache/prompt_cache_key.o: $B/sources
$B/obj/engine/cache/prompt_cache_key.o: CFLAGS += -DSLUICE_SOURCES='"$(SOURCES)"'
# One object whose hidden symbols are local: whoever links the archive sees only sluice_ names.
$B/libsluice.a: $(ENGINE_O) $B/cuda.objects Makefile
	@echo "  ar $@"
	@$(LD) -r -o $B/libsluice.o $(ENGINE_O)
	@objcopy --localize-hidden $B/libsluice.o
	@rm -f $@
	@$(AR) rcs $@ $B/libsluice.o
$B/libsluice.so: $(ENGINE_O) $B/cuda.objects
	@echo "  ld $@"
	@$(CC) -shared -Wl,-soname,$(SONAME) $(LDFLAGS) -o $@ $(ENGINE_O) $(LIBS)
	@ln -sf libsluice.so $B/$(SONAME)
$B/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $@"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# make demo's gallery: the only one that needs cairo and libsixel, so not part of all.
GALLERY_O := $(patsubst %,$B/obj/bench/%.o,gallery contact_sheet terminal_picture)
$B/gallery: $(GALLERY_O) $B/libsluice.a
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lcairo -lsixel $(LIBS)

# sluice-dev: random checkpoints and the streaming study. They look into the engine, so they link the objects.
DEV_O := $(patsubst %.c,$B/obj/%.o,$(filter-out %/main.c %_command.c,$(wildcard bench/dev/*.c)))
DEV_PROGRAM_O := $(patsubst %.c,$B/obj/%.o,$(wildcard bench/dev/main.c bench/dev/*_command.c)) \
                 $(patsubst %,$B/obj/cli/%.o,fail messages outfile)
.PHONY: dev
dev: $B/sluice-dev
$B/sluice-dev: $(DEV_PROGRAM_O) $(DEV_O) $(ENGINE_O) $B/cuda.objects
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)

# The picture in bench/results.
PICTURE_O := $B/obj/bench/stream_picture.o
$B/stream_picture: $(PICTURE_O) $(DEV_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lcairo $(LIBS)

# What opening headers takes, for bench/loading.sh.
HEADERS_O := $B/obj/bench/headers.o
$B/headers: $(HEADERS_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# Operators beside PyTorch's, for bench/torch_operators.py.
CPU_OPERATORS_O := $B/obj/bench/cpu_operators.o
$B/cpu_operators.so: $(CPU_OPERATORS_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) -shared $(LDFLAGS) -o $@ $^ $(LIBS)

# What adapters cost.
ADAPTER_COST_O := $B/obj/bench/adapter_cost.o
$B/adapter_cost: $(ADAPTER_COST_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$B/obj/cli/%.o: CFLAGS += $(foreach kind,$(PICTURES),$(PICTURES_$(kind))) $(if $(filter 1,$(FFMPEG)),-DVIDEO_FFMPEG)
# Which formats these hold follows from the sources.
$B/obj/cli/picture.o $B/obj/cli/video.o: $B/cli.objects

-include $(HEADERS_O:.o=.d) $(CPU_OPERATORS_O:.o=.d) $(ADAPTER_COST_O:.o=.d) $(ENGINE_O:.o=.d) $(CLI_O:.o=.d) $(GALLERY_O:.o=.d) $(PICTURE_O:.o=.d) $(DEV_O:.o=.d) $(DEV_PROGRAM_O:.o=.d)

include test/check.mk
include bench/gpu/gpu.mk

# ---- installing ----

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
# Made by the program itself: page or shell, and where it goes.
MAN_PAGE := $(DATADIR)/man/man1/sluice.1
COMPLETION_bash := $(DATADIR)/bash-completion/completions/sluice
COMPLETION_zsh := $(DATADIR)/zsh/site-functions/_sluice
COMPLETION_fish := $(DATADIR)/fish/vendor_completions.d/sluice.fish

# The archive needs what is private; as -l, not as Requires.private, for which even pkg-config --cflags wants all their
# .pc files, and oneDNN 2 has none.
define PKG_CONFIG_FILE
prefix=$(PREFIX)
libdir=$(LIBDIR)
includedir=$(INCLUDEDIR)

Name: sluice
Description: Diffusion models that are bigger than the memory they run in
Version: $(VERSION)
Cflags: -I"$${includedir}"
Libs: -L"$${libdir}" -lsluice
Libs.private: -fopenmp $(LIBS)
endef

.PHONY: install uninstall
install: export PKG_CONFIG_FILE := $(PKG_CONFIG_FILE)
install: all
	@install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig'
	@install $B/sluice '$(DESTDIR)$(BINDIR)/sluice'
	@install -m 644 engine/sluice.h engine/sluice_bench.h '$(DESTDIR)$(INCLUDEDIR)'
	@install -m 644 $B/libsluice.a '$(DESTDIR)$(LIBDIR)/libsluice.a'
	@install -m 755 $B/libsluice.so '$(DESTDIR)$(LIBDIR)/libsluice.so.$(VERSION)'
	@ln -sf libsluice.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	@ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libsluice.so'
	@install -d '$(DESTDIR)$(dir $(MAN_PAGE))' $(foreach s,bash zsh fish,'$(DESTDIR)$(dir $(COMPLETION_$s))')
	@$B/sluice manual >'$(DESTDIR)$(MAN_PAGE)'
	@$(foreach s,bash zsh fish,$B/sluice completion $s >'$(DESTDIR)$(COMPLETION_$s)' &&) :
	@printf '%s\n' "$$PKG_CONFIG_FILE" >'$(DESTDIR)$(LIBDIR)/pkgconfig/sluice.pc'
	@[ -n '$(DESTDIR)' ] || PATH="$$PATH:/usr/sbin:/sbin" ldconfig 2>/dev/null || \
	    echo "if programs do not find $(SONAME), run: sudo ldconfig"
uninstall:
	rm -f '$(DESTDIR)$(BINDIR)/sluice' '$(DESTDIR)$(INCLUDEDIR)/sluice.h' \
	    '$(DESTDIR)$(INCLUDEDIR)/sluice_bench.h' '$(DESTDIR)$(LIBDIR)/pkgconfig/sluice.pc' \
	    '$(DESTDIR)$(LIBDIR)/libsluice.a' '$(DESTDIR)$(LIBDIR)/libsluice.so' '$(DESTDIR)$(LIBDIR)/$(SONAME)' \
	    '$(DESTDIR)$(LIBDIR)/libsluice.so.$(VERSION)' '$(DESTDIR)$(MAN_PAGE)' \
	    $(foreach s,bash zsh fish,'$(DESTDIR)$(COMPLETION_$s)')

.PHONY: clean
clean:
	rm -rf build
