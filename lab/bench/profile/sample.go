package profile

// Frame is a function on a stack.
type Frame struct {
	// Symbol is its name as the linker or the kernel knows it, without an
	// offset; "[unknown]" where there is none.
	Symbol string
	// Object is the file it is from, or "[kernel.kallsyms]".
	Object string
}

// Sample is what one processor did at one moment.
type Sample struct {
	// Command is the name of the thread, PID its process; both are those of the
	// idle task ("swapper", 0) where nothing ran.
	Command string
	PID     int
	// Stack begins with the innermost function. It may be empty.
	Stack []Frame
}
