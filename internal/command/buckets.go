package command

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/features"
)

// inBuckets are the flags of each command whose values may be URLs of buckets, and "" if
// what follows the flags may be some.
var inBuckets = map[string][]string{
	"extract":  {"images", "out"},
	"train":    {"features", "val", "calibration"},
	"detect":   {"features", "out", ""},
	"evaluate": {"train", "id", "val", "near", "far"},
	"ablate":   {"train", "id", "val", "near", "far"},
	"inspect":  {"features", "test"},
	"show":     {""},
	"merge":    {""},
	"convert":  {""},
}

// inBucket tells whether a value is the URL of something in a bucket, perhaps behind NAME=.
func inBucket(value string) bool {
	if _, behind, ok := strings.Cut(value, "="); ok && !strings.Contains(value[:len(value)-len(behind)], "/") {
		value = behind
	}
	return strings.HasPrefix(value, "s3://") || strings.HasPrefix(value, "gs://")
}

// addCacheFlag adds the flag for temporary copies of sets in buckets.
func (c *command) addCacheFlag() {
	c.String("cache", "", "`DIR` for temporary copies of feature sets in buckets (default: in memory)")
	c.rare("cache")
}

// useBuckets refuses URLs of buckets where only the disk will do, lest a folder is called
// s3:, and says where sets in buckets are copied to.
func (c *command) useBuckets() (err error) {
	allowed := inBuckets[c.cmd.Name()]
	c.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if i := slices.IndexFunc(values, inBucket); i >= 0 && !slices.Contains(allowed, f.Name) && err == nil {
			err = Usagef("--%s %s: it must be on the disk, and not in a bucket", f.Name, values[i])
		}
	})
	if i := slices.IndexFunc(c.Args(), inBucket); i >= 0 && !slices.Contains(allowed, "") && err == nil {
		err = Usagef("%s: it must be on the disk, and not in a bucket", c.Arg(i))
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
