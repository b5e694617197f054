# Fuzzing with clang's libFuzzer: `make fuzz` runs each target for FUZZ_SECONDS, starting from the corpus test/fuzz/TARGET.ar (an ar
# archive). Findings are build/fuzz/TARGET_crash-*, TARGET_timeout-* and TARGET_oom-*. Add them to the corpus with the fix, under names
# of at most 15 bytes: ar rDS test/fuzz/TARGET.ar FILE...
FUZZ := gguf safetensors shards tokenizer
FUZZ_SECONDS ?= 3600
FUZZ_FLAGS := -std=c11 -D_GNU_SOURCE -ffp-contract=off -I. -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FUZZ_O := $(patsubst %.c,build/fuzz/obj/%.o,$(wildcard engine/base/*.c loaders/*.c loaders/*/*.c))
build/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  clang $@"
	@clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
$(FUZZ:%=build/fuzz/%): build/fuzz/%: test/fuzz/fuzz.c test/fuzz/targets.h $(FUZZ_O)
	@echo "  clang $@"
	@clang $(FUZZ_FLAGS) -fsanitize=fuzzer -DTARGET=target_$* -o $@ $< $(FUZZ_O) -ljansson -lpcre2-8 -lutf8proc -lnettle -lm -lpthread
.PHONY: fuzz fuzz-programs $(FUZZ:%=fuzz-%)
fuzz-programs: $(FUZZ:%=build/fuzz/%)
fuzz:
	@for name in $(FUZZ); do $(MAKE) --no-print-directory fuzz-$$name || exit 1; done
$(FUZZ:%=fuzz-%): fuzz-%: build/fuzz/%
	@mkdir -p build/fuzz/corpus/$* build/fuzz/packed/$*
	@ar x --output=build/fuzz/packed/$* test/fuzz/$*.ar
	@build/fuzz/$* -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/$*_ build/fuzz/corpus/$* build/fuzz/packed/$*
-include $(FUZZ_O:.o=.d)
