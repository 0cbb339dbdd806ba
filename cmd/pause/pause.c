// pause holds a pod's namespaces open and reaps the pod's orphans.
//
// It needs no C library: four system calls are all it makes, so the whole
// program is about a kilobyte of text and starts in microseconds. Signals are
// blocked and taken from a queue, not handled: a blocked signal also reaches
// process 1 of a PID namespace, which otherwise ignores those without handler.

#include "../include/syscall.h"

#define SIGINT 2
#define SIGTERM 15
#define SIGCHLD 17
#define SIG_BLOCK 0
#define WNOHANG 1

#define BIT(sig) (1UL << ((sig) - 1))

// The kernel enters here with no return address on the stack.
__attribute__((noreturn)) void _start(void)
{
	unsigned long set = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGCHLD);

	syscall4(__NR_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof(set));
	for (;;) {
		long sig = syscall4(__NR_rt_sigtimedwait, (long)&set, 0, 0, sizeof(set));

		if (sig == SIGINT || sig == SIGTERM)
			syscall4(__NR_exit_group, 0, 0, 0, 0);
		// Also after EINTR: one SIGCHLD can stand for many children.
		while (syscall4(__NR_wait4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
