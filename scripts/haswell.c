// haswell PROGRAM [ARGUMENTS]: runs a program natively as on a Haswell, which has AVX2 and
// lacks AVX-512 and VNNI: the processor's answers to CPUID are cut down to that. Other
// programs then choose the code that they would choose there. Linux on x86-64, where the
// processor can trap CPUID (cpuid_fault in /proc/cpuinfo). The program is traced, so that
// whatever code, in whatever thread, asks the processor is answered here. It ends with the
// program's status.
#include <asm/prctl.h>
#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what) {
	fprintf(stderr, "haswell: %s: %s\n", what, strerror(errno));
	exit(125);
}

// trap makes CPUID raise a signal in a process that has just executed a program, by a
// system call in its name. What it starts inherits that.
static void trap(pid_t child) {
	struct user_regs_struct before, call;
	int status;
	if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, __WALL) != child) die("the end of execve");
	if (ptrace(PTRACE_GETREGS, child, 0, &before)) die("registers");
	errno = 0;
	long code = ptrace(PTRACE_PEEKTEXT, child, before.rip, 0);
	if (errno) die("code");
	call = before;
	call.rax = SYS_arch_prctl;
	call.rdi = ARCH_SET_CPUID;
	call.rsi = 0;
	if (ptrace(PTRACE_POKETEXT, child, before.rip, (code & ~0xffffL) | 0x050f) || ptrace(PTRACE_SETREGS, child, 0, &call) ||
	    ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, __WALL) != child || ptrace(PTRACE_GETREGS, child, 0, &call)) die("a call");
	if (call.rax != 0) {
		errno = -(long)call.rax;
		die("this processor does not trap CPUID");
	}
	if (ptrace(PTRACE_POKETEXT, child, before.rip, code) || ptrace(PTRACE_SETREGS, child, 0, &before)) die("registers");
}

// answered executes a CPUID that trapped, and tells whether it was one.
static int answered(pid_t child) {
	struct user_regs_struct r;
	if (ptrace(PTRACE_GETREGS, child, 0, &r)) return 0;
	errno = 0;
	long code = ptrace(PTRACE_PEEKTEXT, child, r.rip, 0);
	if (errno || (code & 0xffff) != 0xa20f) return 0;
	unsigned leaf = r.rax, a, b, c, d;
	__cpuid_count(leaf, (unsigned)r.rcx, a, b, c, d);
	if (leaf == 7) { // of the extensions: FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID
		b = (unsigned)r.rcx == 0 ? b & 0x7a9 : 0;
		a = c = d = 0;
	}
	r.rax = a, r.rbx = b, r.rcx = c, r.rdx = d;
	r.rip += 2;
	return ptrace(PTRACE_SETREGS, child, 0, &r) == 0;
}

int main(int argc, char **argv) {
	if (argc < 2) {
		fprintf(stderr, "usage: haswell PROGRAM [ARGUMENTS]\n");
		return 125;
	}
	pid_t first = fork();
	if (first < 0) die("fork");
	if (first == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		execvp(argv[1], argv + 1);
		die(argv[1]);
	}
	signal(SIGINT, SIG_IGN); // the program gets it, too, and decides
	int status;
	if (waitpid(first, &status, 0) != first) die("wait");
	if (ptrace(PTRACE_SETOPTIONS, first, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC)) die("ptrace");
	ptrace(PTRACE_CONT, first, 0, 0);
	for (;;) {
		pid_t child = waitpid(-1, &status, __WALL);
		if (child < 0) die("wait");
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (child == first) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		int sig = WSTOPSIG(status), event = status >> 16;
		if (event == PTRACE_EVENT_EXEC) trap(child);
		if (event || sig == SIGSTOP || (sig == SIGSEGV && answered(child))) sig = 0; // threads begin with SIGSTOP
		ptrace(PTRACE_CONT, child, 0, sig);
	}
}
