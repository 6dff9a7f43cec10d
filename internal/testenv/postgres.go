//go:build unix

package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Postgres is a PostgreSQL server of a test.
type Postgres struct {
	URL  string // of its database
	dir  string
	bin  string
	cred *syscall.Credential
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
}

// StartPostgres starts PostgreSQL on a folder of its own, reached by a Unix socket
// there, and ends it with the test. It takes Debian's programs, or those on the PATH.
// Where the test runs as root, the server runs as the user postgres or nobody, since
// it refuses root.
func StartPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	const remedy = "install PostgreSQL (Debian: postgresql)"
	p := &Postgres{}
	program, err := exec.LookPath("initdb")
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); err != nil && len(found) > 0 {
		program, err = found[len(found)-1], nil
	}
	if err != nil {
		Missing(tb, "postgres", remedy, err)
	}
	p.bin = filepath.Dir(program)
	// The folder of a test cannot be entered by another user.
	if p.dir, err = os.MkdirTemp("", "mlrbfn-pg"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(p.dir) })
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			account, err = user.Lookup("nobody")
		}
		if err != nil {
			Missing(tb, "postgres", remedy, err)
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		p.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(p.dir, int(uid), int(gid)); errors.Is(err, syscall.EINVAL) {
			Missing(tb, "postgres", "in a user namespace root has no other account", err)
		} else if err != nil {
			tb.Fatal(err)
		}
	}
	initdb := p.command("initdb", "--pgdata", p.data(), "--username", "mlrbfn", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}
	p.URL = "postgres://mlrbfn@/postgres?host=" + p.dir
	p.Start(tb)
	tb.Cleanup(func() { p.Stop(tb, syscall.SIGQUIT) })
	return p
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

func (p *Postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	return cmd
}

// Start starts the server anew after Stop.
func (p *Postgres) Start(tb testing.TB) {
	tb.Helper()
	p.cmd = p.command("postgres", "-D", p.data(), "-k", p.dir, "-c", "listen_addresses=", "-c", "logging_collector=off", "-c", "shared_buffers=32MB", "-c", "fsync=off")
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stderr = log
	endWithParent(p.cmd)
	p.gone = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the server ends with the thread that started it
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.gone)
		}
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	for range 300 {
		if p.command("pg_isready", "--quiet", "--host", p.dir).Run() == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	tb.Fatalf("PostgreSQL does not start:\n%s", text)
}

// Stop ends the server by a signal: SIGINT cuts connections and shuts down in order,
// SIGQUIT ends at once, as a crash would.
func (p *Postgres) Stop(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	select {
	case <-p.gone:
		return
	default:
	}
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.gone:
	case <-time.After(30 * time.Second):
		tb.Error(fmt.Errorf("PostgreSQL does not end"))
		_ = p.cmd.Process.Kill()
	}
}
