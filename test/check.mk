# Tests. Each test/FOLDER/test_NAME.c is one program with cmocka that links the test library: the engine's objects, whose
# symbols are not hidden from it, those of bench/dev and those of test/lib. What runs, and where: test/suites.
TEST_FOLDERS := $(sort $(dir $(wildcard test/*/test_*.c)))
TESTS := $(patsubst test_%.c,%,$(notdir $(wildcard $(patsubst %,%test_*.c,$(filter-out test/device/,$(TEST_FOLDERS))))))
TEST_LIB_O := $(patsubst %.c,$B/obj/%.o,$(wildcard test/lib/*.c))
# The tables families[] and recipes[] that tests see are test/lib/tables.c's.
TEST_ENGINE_O := $(filter-out $B/obj/models/models.o,$(ENGINE_O))
TEST_LIBS := $(CLI_LIBS) $(LIBS)
ifeq ($(CONFIG),tsan)
# No oneDNN: its OpenMP is not instrumented and gives false races.
TEST_ENGINE_O := $(patsubst %.c,$B/obj/%.o,$(wildcard engine/base/*.c engine/run/*.c kernels/*.c kernels/dry/*.c)) $(CUDA_O)
DEV_O := $(patsubst %,$B/obj/bench/dev/%.o,paced timed virtual_threads)
# Of the test library only what these tests use.
TEST_LIB_O := $(patsubst %,$B/obj/test/lib/%.o,arithmetic_device assert_ok check cmocka_tests fault_sys memory_checker ops_cases \
    ops_convolutions ops_operands ops_pieces ops_positions ops_products ops_shortcuts ops_tests random_needs seeded \
    store_adapters store_fixture synthetic_family synthetic_files synthetic_run temporary_folder)
TEST_LIBS := $(CUDA_LIBS) -lm -lpthread
endif

# Default visibility: a test may put its own malloc before the libraries'. Test functions and fakes ignore parameters.
$(TEST_FOLDERS:%=$B/obj/%%.o) $B/obj/test/lib/%.o: CFLAGS += -fvisibility=default -Wno-unused-parameter $(if $(filter release,$(CONFIG)),-O1)
$B/libtest.a: $(TEST_ENGINE_O) $(DEV_O) $(TEST_LIB_O) $B/cuda.objects
	@echo "  ar $@"
	@rm -f $@
	@! nm -g --defined-only $(filter %.o,$^) | awk '$$2 ~ /^[BDRT]$$/ { print $$3 }' | sort | uniq -d | grep '' || \
	    { echo "$@: defined twice; the linker would take the first that it finds"; exit 1; }
	@$(AR) rcsT $@ $(filter %.o,$^)
# ld.gold, where installed, links in half of ld.bfd's time.
TEST_LDFLAGS := $(if $(shell command -v ld.gold),-fuse-ld=gold)
# One rule a folder: a program lies in $B, whatever folder its source is in.
define TEST_PROGRAMS
$B/test_%: $B/obj/$(1)test_%.o $B/libtest.a
	@echo "  ld $$@"
	@$(CC) $$(LDFLAGS) $(TEST_LDFLAGS) -o $$@ $$(filter %.o,$$^) $B/libtest.a -lcmocka $(TEST_LIBS)
endef
$(foreach folder,$(TEST_FOLDERS),$(eval $(call TEST_PROGRAMS,$(folder))))
.SECONDARY: $(patsubst %.c,$B/obj/%.o,$(wildcard test/*/test_*.c))
# What the program alone has.
$B/test_picture_read: $(filter $B/obj/cli/picture%.o,$(CLI_O)) $(patsubst %,$B/obj/cli/%.o,fail messages outfile)
$B/test_outfile: $(patsubst %,$B/obj/cli/%.o,fail outfile messages)
$B/test_video: $(patsubst %,$B/obj/cli/%.o,fail outfile palette messages video video_encode)
$B/test_terminal: $(patsubst %,$B/obj/cli/%.o,messages terminal)
# It counts these calls.
$B/test_planning_cost: LDFLAGS += -Wl,--wrap=block_stream_seconds,--wrap=block_stream_bound

# What has its own malloc, which as one of the library would be every program's.
$(patsubst %,$B/test_%,bf16 ops ops_adapters ops_weights): $B/obj/test/ops/ops_checker.o

include test/device/check.mk
include test/fuzz/fuzz.mk
ifneq ($(EMULATED),)
include test/emu/emu.mk
endif

.PHONY: tests
tests: all dev $(TESTS:%=$B/test_%)

-include $(TEST_LIB_O:.o=.d) $(wildcard $(TEST_FOLDERS:%=$B/obj/%*.d))

.PHONY: check check-all test demo packages
check:
	@mkdir -p build
	@sh test/check.sh check
# What make check leaves out: about an hour of two processors (test/suites). Goes on where it was ended; FRESH=1 starts over.
check-all:
	@mkdir -p build
	@sh test/check.sh all
# One suite; of none, which there are.
test-%:
	@mkdir -p build
	@sh test/check.sh suite $*
packages:
	@sh test/install.sh build
test:
	@sh test/install.sh build check demo
	@$(MAKE) --no-print-directory check
demo:
	@sh test/install.sh build demo
	@$(MAKE) --no-print-directory -j2 all $B/gallery
	@mkdir -p build/demo
	@$B/gallery models/demo build/demo/gallery.png
