package command

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/features"
)

// schemeOf returns the scheme of a value that is a URL, perhaps behind NAME=, or "".
func schemeOf(value string) string {
	if _, behind, ok := strings.Cut(value, "="); ok && !strings.Contains(value[:len(value)-len(behind)], "/") {
		value = behind
	}
	return urls.FindString(value)
}

var (
	urls  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)
	disks = regexp.MustCompile(`\b(FILE|DIR|FOLDER|FEATURES|DETECTOR|REPORT)\b`)
)

// onDisk tells by the name of a flag's value in the help whether it is a file or a folder.
func onDisk(f *pflag.Flag) bool {
	name, _ := pflag.UnquoteUsage(f)
	return disks.MatchString(name) && !strings.Contains(name, "://")
}

// addCacheFlag adds the flag for temporary copies of sets in buckets.
func (c *command) addCacheFlag() {
	c.String("cache", "", "`DIR` for temporary copies of feature sets in buckets (default: in memory)")
	c.means("cache", "Cache", "Copies")
	c.rare("cache")
}

// useBuckets refuses URLs where only the disk will do, lest a folder is called s3: or
// https:, and says where sets in buckets are copied to.
func (c *command) useBuckets() (err error) {
	c.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			scheme := schemeOf(value)
			switch {
			case err != nil || scheme == "" || !onDisk(f) || slices.Contains(c.readsURLs, f.Name):
			default:
				err = Usagef("--%s %s: it must be on the disk, and not at a URL; name a file or folder here, and copy it there or from there by other means", f.Name, value)
			}
		}
	})
	if i := slices.IndexFunc(c.Args(), func(arg string) bool { return schemeOf(arg) != "" }); i >= 0 && !slices.Contains(c.readsURLs, "") && err == nil {
		err = Usagef("%s: it must be on the disk, and not at a URL", c.Arg(i))
	}
	if cache := c.Lookup("cache"); cache != nil {
		copies := features.Copies{Dir: cache.Value.String()}
		if memory := c.Lookup("memory"); memory != nil && memory.Changed {
			if bytes, ok := memory.Value.(*Bytes); ok {
				copies.Memory = int64(*bytes)
			}
		}
		features.SetCopies(copies)
	}
	return err
}
