package testenv

import (
	"os/exec"
	"syscall"
)

// endWithParent has a program end when the test is killed.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }
