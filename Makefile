# Sluice. One Makefile, one CONFIG, a build folder each.
#   make            the program and the libraries, build/release
#   make demo       installs what is missing, builds, draws a gallery
#   make test       installs what is missing, then make check
#   make check      format, include rules, tests in release, asan and tsan
CONFIG ?= release
ifeq ($(origin CC),default)
CC := gcc
endif
B := build/$(CONFIG)

WARN := -Wall -Wextra -Werror -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
# No contraction into fused multiply-adds and no fast-math: bits must not depend on what the compiler fancies.
BASE := -std=c11 -D_GNU_SOURCE -fopenmp -ffp-contract=off -fvisibility=hidden -fPIC -I. $(WARN)
CFLAGS_release := -O3 -g
CFLAGS_debug   := -O0 -g
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread
CFLAGS_stress  := -O2 -g -DSLUICE_STRESS
CFLAGS_cov     := -O0 -g --coverage
ifeq ($(CFLAGS_$(CONFIG)),)
$(error CONFIG=$(CONFIG) is not one of release debug asan tsan stress cov)
endif
CFLAGS := $(BASE) $(CFLAGS_$(CONFIG)) $(EXTRA_CFLAGS)
LDFLAGS := -fopenmp $(filter -fsanitize=% --coverage,$(CFLAGS_$(CONFIG)))
LIBS := -ldnnl -ljansson -lpcre2-8 -lutf8proc -lnettle -lm -lpthread
CLI_LIBS := -lpng -ljansson -lz

ENGINE := $(wildcard engine/base/*.c engine/run/*.c engine/sample/*.c engine/api/*.c kernels/*.c kernels/dry/*.c kernels/paced/*.c \
                     kernels/cpu/*.c loaders/*.c models/*.c)
CLI := $(wildcard cli/*.c)
ENGINE_O := $(ENGINE:%.c=$B/obj/%.o)
CLI_O := $(CLI:%.c=$B/obj/%.o)

.PHONY: all
all: $B/sluice $B/libsluice.a $B/libsluice.so

$B/sluice: $(CLI_O) $B/libsluice.a
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(CLI_LIBS) $(LIBS)
# One object whose hidden symbols are local: whoever links the archive sees only sluice_ names.
$B/libsluice.a: $(ENGINE_O) Makefile
	@echo "  ar $@"
	@$(LD) -r -o $B/libsluice.o $(ENGINE_O)
	@objcopy --localize-hidden $B/libsluice.o
	@rm -f $@
	@$(AR) rcs $@ $B/libsluice.o
$B/libsluice.so: $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) -shared $(LDFLAGS) -o $@ $^ $(LIBS)
$B/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $@"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# make demo's gallery: the only one that needs cairo and libsixel, so not part of all.
GALLERY_O := $(patsubst %,$B/obj/bench/%.o,gallery contact_sheet terminal_picture)
$B/gallery: $(GALLERY_O) $B/libsluice.a
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lcairo -lsixel $(LIBS)

# The picture in bench/results: looks into the engine, so it links the objects.
PICTURE_O := $B/obj/bench/stream_picture.o
$B/stream_picture: $(PICTURE_O) $(ENGINE_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lcairo $(LIBS)

-include $(ENGINE_O:.o=.d) $(CLI_O:.o=.d) $(GALLERY_O:.o=.d) $(PICTURE_O:.o=.d)

include test/check.mk

.PHONY: clean
clean:
	rm -rf build
