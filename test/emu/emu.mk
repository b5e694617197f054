# The emulator's self-test $B/emu_self, for CONFIG=emu, asan and tsan; included by check.mk.
EMU_SELF_O := $B/obj/test/emu/self.o $(patsubst test/emu/%.cc,$B/obj/test/emu/%.o,$(wildcard test/emu/*.cc))
$B/obj/test/emu/self.o: test/emu/self.cu
	@mkdir -p $(@D)
	@echo "  c++ $@"
	@$(CXX) -x c++ $(CXXFLAGS) -Itest/emu -MMD -MP -c -o $@ $<
$B/emu_self: $(EMU_SELF_O)
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lstdc++ -lm -lpthread
-include $(EMU_SELF_O:.o=.d)
