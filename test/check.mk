# Tests. Each test/FOLDER/test_NAME.c is one program that links what tests share, the engine's objects and cmocka; it ends with
# cmocka's summary. What runs, and in which order: test/check.sh. What test/device holds: test/device/check.mk.
TEST_FOLDERS := $(filter-out test/device/,$(sort $(dir $(wildcard test/*/test_*.c))))
TESTS := $(patsubst test_%.c,%,$(notdir $(wildcard $(TEST_FOLDERS:%=%test_*.c))))
vpath test_%.c $(TEST_FOLDERS)
TEST_BINS := $(TESTS:%=$B/test_%)

# What tests share: of it a program takes what it names.
TEST_LIB := $B/libtest.a
TEST_LIB_O := $(patsubst %.c,$B/obj/%.o,$(wildcard test/lib/*.c))
$(TEST_LIB): $(TEST_LIB_O)
	@echo "  ar $@"
	@rm -f $@
	@$(AR) rcs $@ $^
-include $(TEST_LIB_O:.o=.d)

# Default visibility: a test may put its own malloc before the libraries'.
$B/test_%: test_%.c $(TEST_LIB) $(ENGINE_O) $B/cuda.objects
	@echo "  ld $@"
	@$(CC) $(CFLAGS) -fvisibility=default -MMD -MP $(LDFLAGS) -o $@ $< $(TEST_LIB) $(filter %.o,$^) -lcmocka $(CLI_LIBS) $(LIBS)
# What the program alone has.
$B/test_picture_read: $B/obj/cli/picture_read.o $B/obj/cli/fail.o

# Under the thread sanitizer no oneDNN: its OpenMP is not instrumented and gives false races.
TSAN_O := $(patsubst %.c,$B/obj/%.o,$(wildcard engine/base/*.c engine/run/*.c kernels/*.c kernels/dry/*.c kernels/paced/*.c))
$B/tsan_%: test_%.c $(TEST_LIB) $(TSAN_O)
	@echo "  ld $@"
	@$(CC) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(TEST_LIB) $(TSAN_O) -lcmocka -lm -lpthread

include test/device/check.mk
include test/fuzz/fuzz.mk
ifneq ($(filter emu%,$(CONFIG)),)
include test/emu/emu.mk
endif

.PHONY: tests
tests: all $(TEST_BINS)

-include $(wildcard $B/*.d)

.PHONY: check check-all test demo packages
check:
	@sh test/check.sh
# Every fault, prompt and sanitizer: hours.
check-all:
	@sh test/check.sh all
packages:
	@sh test/install.sh build
test:
	@sh test/install.sh build check demo
	@$(MAKE) --no-print-directory check
demo:
	@sh test/install.sh build demo
	@$(MAKE) --no-print-directory -j2 all $B/gallery
	@sh test/demo.sh $B/sluice build/demo
