// shim becomes the containerd-shim-runc-v2 beside it, with the timer slack that
// programs have by default.
//
// The threads of an idle Kombi have a large one (pkg/idle), and the kernel
// gives it to everything that they start: without this program, to containers.
// It needs no C library.

#include "../include/syscall.h"

#define PR_SET_TIMERSLACK 29
#define DEFAULT_SLACK 50000 // nanoseconds, as the kernel gives to process 1
#define STDERR 2
#define PATH_MAX 4096

static const char shim[] = "containerd-shim-runc-v2";
static const char failed[] = "shim: containerd-shim-runc-v2 beside it cannot be run: start Kombi again, it mends its programs\n";

// The kernel puts argc, argv and the environment on the stack.
__asm__(".globl _start\n"
	"_start:\n"
#if defined(__x86_64__)
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call start\n"
#elif defined(__aarch64__)
	"	mov x0, sp\n"
	"	bl start\n"
#endif
);

__attribute__((noreturn, used)) static void start(long *stack)
{
	long argc = stack[0];
	char **argv = (char **)(stack + 1);
	char **environment = argv + argc + 1;
	static char path[PATH_MAX];
	unsigned long folder = 0;

	// The folder of the path by which it was run.
	for (unsigned long i = 0; argc > 0 && argv[0][i] && i < PATH_MAX - sizeof(shim); i++) {
		path[i] = argv[0][i];
		if (path[i] == '/')
			folder = i + 1;
	}
	for (unsigned long i = 0; i < sizeof(shim); i++)
		path[folder + i] = shim[i];

	syscall4(__NR_prctl, PR_SET_TIMERSLACK, DEFAULT_SLACK, 0, 0);
	syscall4(__NR_execve, (long)path, (long)argv, (long)environment, 0);
	syscall4(__NR_write, STDERR, (long)failed, sizeof(failed) - 1, 0);
	for (;;)
		syscall4(__NR_exit_group, 127, 0, 0, 0);
}
