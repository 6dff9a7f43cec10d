// Goget shows that Go's own commands can take this module from a proxy: it packs the last
// commit as a proxy does, with its limits of size and names, and serves it from a folder.
// A module outside then gets it, compiles examples/library and runs it, and `go install`
// installs the program.
//
//	scripts/run goget
//
// Modules that are needed come from Go's cache of this machine, or its usual proxy.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/version"
)

// mostBytes is what everyone who gets the module may have to download for it.
const mostBytes = 10 << 20

func main() { command.Program("goget", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if err := command.Parse(command.Flags("goget", "", "Gets this module from a proxy, as its users do.", stdout), args); err != nil {
		return err
	}
	room, err := os.MkdirTemp("", "goget")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(room)) }()
	// Worktrees are not what x/mod takes for a repository, and a clone is.
	clone := filepath.Join(room, "clone")
	if out, err := exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-checkout", ".", clone).CombinedOutput(); err != nil {
		return fmt.Errorf("git clone: %w: %s", err, out)
	}
	m, err := publish(clone, filepath.Join(room, "proxy"), stdout)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return err
	}
	settings := strings.Split(strings.TrimSpace(string(out)), "\n")
	user := user{ctx: ctx, stdout: stdout, stderr: stderr, dir: filepath.Join(room, "outside"), env: append(os.Environ(),
		"GOPROXY=file://"+filepath.Join(room, "proxy")+",file://"+filepath.Join(settings[0], "cache", "download")+","+settings[1],
		"GOMODCACHE="+filepath.Join(room, "modules"), "GOBIN="+filepath.Join(room, "bin"), "HOME="+filepath.Join(room, "outside"), "GOCACHE="+cache(ctx),
		"GOFLAGS=-trimpath -modcacherw", "GOWORK=off", "GONOSUMDB="+m.Path, "MLRBFN_MODELS=", "ONNXRUNTIME_SHARED_LIBRARY_PATH=")}
	if err := os.MkdirAll(filepath.Join(user.dir, "images"), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(user.dir, "images", "one.png"), nil, 0o666); err != nil {
		return err
	}
	example, err := os.ReadFile("examples/library/main.go")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(user.dir, "main.go"), example, 0o666); err != nil {
		return err
	}
	user.run("go", "mod", "init", "example.org/outside")
	user.run("go", "get", m.String())
	user.run("go", "mod", "tidy")
	if said := user.run("go", "run", "."); user.err == nil && !strings.Contains(said, "AUROC") {
		return fmt.Errorf("the example says %q", said)
	}
	user.run("go", "install", m.Path+"/cmd/mlrbfn@"+m.Version)
	program := filepath.Join(room, "bin", "mlrbfn")
	if said := user.run(program, "version"); user.err == nil && !strings.Contains(said, version.Version) {
		return fmt.Errorf("the program says that it is %q, and the module is %s", said, m.Version)
	}
	if user.err != nil {
		return user.err
	}
	// It lacks the backbone and onnxruntime's library, and says where they are.
	fmt.Fprintln(stdout, "$ mlrbfn demo; mlrbfn extract --model efficientnet-lite0 --images images --out features")
	user.fails(program, "pip install mlrbfn", "demo")
	user.fails(program, "pip install mlrbfn", "extract", "--model", "efficientnet-lite0", "--images", "images", "--out", "features")
	return user.err
}

// cache is where the go command keeps what it compiled.
func cache(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output() // the go command complains later
	return strings.TrimSpace(string(out))
}

// publish writes the last commit of a repository into the folder of a proxy.
func publish(repository, proxy string, stdout io.Writer) (module.Version, error) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return module.Version{}, err
	}
	file, err := modfile.Parse("go.mod", mod, nil)
	if err != nil {
		return module.Version{}, err
	}
	if len(file.Replace)+len(file.Exclude) > 0 {
		return module.Version{}, errors.New("go install of a version takes no module whose go.mod replaces or excludes others")
	}
	m := module.Version{Path: file.Module.Mod.Path, Version: "v" + version.Version}
	if err := module.Check(m.Path, m.Version); err != nil {
		return m, err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return m, err
	}
	packed, err := os.Create(filepath.Join(dir, m.Version+".zip"))
	if err != nil {
		return m, err
	}
	if err := errors.Join(zip.CreateFromVCS(packed, m, repository, "HEAD", ""), packed.Close()); err != nil {
		return m, err
	}
	checked, err := zip.CheckZip(m, packed.Name())
	if err = errors.Join(err, checked.Err()); err != nil {
		return m, err
	}
	info, err := os.Stat(packed.Name())
	if err != nil {
		return m, err
	}
	fmt.Fprintf(stdout, "%s: %d files, %d bytes packed\n", m, len(checked.Valid), info.Size())
	if info.Size() > mostBytes {
		return m, fmt.Errorf("the module has more than %d bytes", mostBytes)
	}
	about, err := json.Marshal(map[string]any{"Version": m.Version, "Time": time.Now().UTC()})
	if err != nil {
		return m, err
	}
	return m, errors.Join(os.WriteFile(filepath.Join(dir, m.Version+".info"), about, 0o666), os.WriteFile(filepath.Join(dir, m.Version+".mod"), mod, 0o666),
		os.WriteFile(filepath.Join(dir, "list"), []byte(m.Version+"\n"), 0o666))
}

// user runs commands in a folder outside of the checkout, until one fails.
type user struct {
	ctx            context.Context
	stdout, stderr io.Writer
	dir            string
	env            []string
	err            error
}

// run runs a command and returns what it printed.
func (u *user) run(name string, args ...string) string {
	if u.err != nil {
		return ""
	}
	fmt.Fprintln(u.stdout, "$", filepath.Base(name), strings.Join(args, " "))
	cmd := exec.CommandContext(u.ctx, name, args...)
	var out strings.Builder
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = u.dir, u.env, io.MultiWriter(u.stdout, &out), u.stderr
	if err := cmd.Run(); err != nil {
		u.err = fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return out.String()
}

// fails runs a command that must fail with a text.
func (u *user) fails(name, text string, args ...string) {
	cmd := exec.CommandContext(u.ctx, name, args...)
	cmd.Dir, cmd.Env = u.dir, u.env
	out, err := cmd.CombinedOutput()
	fmt.Fprintf(u.stdout, "%s", out)
	if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(string(out), text) {
		u.err = errors.Join(u.err, fmt.Errorf("%s %s: %w, and it says %q; want an error with %q", filepath.Base(name), strings.Join(args, " "), err, out, text))
	}
}
