# Tests. Each test/FOLDER/test_NAME.c is one program. It links libtest.a: the objects of the engine, bench/dev and test/lib,
# internal functions included. test/suites says which programs run, and in which builds.
TEST_FOLDERS := $(sort $(dir $(wildcard test/*/test_*.c)))
TESTS := $(patsubst test_%.c,%,$(notdir $(wildcard $(patsubst %,%test_*.c,$(filter-out test/device/,$(TEST_FOLDERS))))))
TEST_LIB_O := $(patsubst %.c,$B/obj/%.o,$(wildcard test/lib/*.c))
# test/lib/tables.c replaces models/models.c: its families[] and recipes[] also have the synthetic pipeline.
TEST_ENGINE_O := $(filter-out $B/obj/models/models.o,$(ENGINE_O))
TEST_LIBS := $(CLI_LIBS) $(LIBS)
ifeq ($(CONFIG),tsan)
# No oneDNN: its OpenMP is not instrumented and gives false races.
TEST_ENGINE_O := $(patsubst %.c,$B/obj/%.o,$(wildcard engine/base/*.c engine/run/*.c kernels/*.c kernels/dry/*.c)) $(CUDA_O)
DEV_O := $(patsubst %,$B/obj/bench/dev/%.o,paced timed virtual_threads)
# The objects of test/lib that the tests of this build use.
TEST_LIB_O := $(patsubst %,$B/obj/test/lib/%.o,arithmetic_device assert_ok check cmocka_tests fault_sys memory_checker ops_cases \
    ops_convolutions ops_operands ops_pieces ops_positions ops_products ops_shortcuts ops_tests ops_video ops_waves random_needs seeded \
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
# One rule for each folder: all programs are built in $B.
define TEST_PROGRAMS
$B/test_%: $B/obj/$(1)test_%.o $B/libtest.a
	@echo "  ld $$@"
	@$(CC) $$(LDFLAGS) $(TEST_LDFLAGS) -o $$@ $$(filter %.o,$$^) $B/libtest.a -lcmocka $(TEST_LIBS)
endef
$(foreach folder,$(TEST_FOLDERS),$(eval $(call TEST_PROGRAMS,$(folder))))
.SECONDARY: $(patsubst %.c,$B/obj/%.o,$(wildcard test/*/test_*.c))
# Objects of the command-line program, which libtest.a lacks.
$B/test_picture_read $B/test_picture_write: $(filter $B/obj/cli/picture%.o,$(CLI_O)) $(patsubst %,$B/obj/cli/%.o,fail messages outfile)
$B/test_outfile: $(patsubst %,$B/obj/cli/%.o,fail outfile messages)
$B/test_video: $(patsubst %,$B/obj/cli/%.o,fail outfile palette messages video video_encode sound)
$B/test_terminal: $(patsubst %,$B/obj/cli/%.o,messages terminal)
# test_planning_cost counts calls of these functions.
$B/test_planning_cost: LDFLAGS += -Wl,--wrap=block_stream_seconds,--wrap=block_stream_bound

# ops_checker.c defines malloc. In libtest.a it would replace malloc in every test program.
$(patsubst %,$B/test_%,bf16 int8 ops ops_adapters ops_weights): $B/obj/test/ops/ops_checker.o

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
# Runs the suites that make check leaves out, about an hour on two processors. Resumes an interrupted run; FRESH=1 starts over.
check-all:
	@mkdir -p build
	@sh test/check.sh all
# Runs one suite; an unknown name lists all suites.
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
