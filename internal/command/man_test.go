package command

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestManPages: there is a page of each command, with all its flags, and man shows each
// without a warning where it is installed.
func TestManPages(t *testing.T) {
	pages := ManPages(time.Unix(0, 0))
	if len(pages) != len(order())+1 {
		t.Errorf("%d pages for %d commands", len(pages), len(order()))
	}
	_, err := exec.LookPath("man")
	for name, page := range pages {
		if err == nil {
			cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-")
			cmd.Env = append(cmd.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=120")
			cmd.Stdin = strings.NewReader(page)
			var shown, warnings strings.Builder
			cmd.Stdout, cmd.Stderr = &shown, &warnings
			if err := cmd.Run(); err != nil || warnings.Len() > 0 {
				t.Errorf("%s: %v %s", name, err, warnings.String())
			}
			if overstruck := regexp.MustCompile(".\b"); !strings.Contains(overstruck.ReplaceAllString(shown.String(), ""), strings.TrimSuffix(name, ".1")) {
				t.Errorf("man shows of %s\n%s", name, shown.String())
			}
		}
	}
	for _, name := range order() {
		commands[name].make().VisitAll(func(f *pflag.Flag) {
			if has := strings.Contains(pages["mlrbfn-"+name+".1"], roff("--"+f.Name)); !has && !f.Hidden {
				t.Errorf("the page of %s says nothing of --%s", name, f.Name)
			}
		})
		if !strings.Contains(pages["mlrbfn.1"], roff("mlrbfn-"+name)+" (1)") {
			t.Errorf("mlrbfn.1 does not list %s", name)
		}
	}
}
