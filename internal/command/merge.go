package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/features"
)

var _ = declare("merge", 130, "--out FEATURES SHARD… [flags]", "Make one feature set of the shards that extract wrote",
	`Makes one feature set of all shards that extract --shard i/n wrote, given in any order, or of the parts of one set that --parts wrote. The set is byte for byte the one that a single run over all images would have written. Shards that are missing, unfinished, damaged or of different sets are refused, and so are shards for which the model gave other features, because a machine was another.`, addMerge)

func addMerge(c *command) {
	c.readsURLs = []string{""}
	c.section("output")
	out := c.String("out", "", "folder `FEATURES` to write the feature set to")
	c.means("out", "Out")
	var opts features.Options
	c.sets(&opts)
	c.BoolVar(&opts.Force, "force", false, "replace a set of another model, preprocessing or folder, or a damaged one")
	addDriftFlag(c.FlagSet, &opts.AllowDriftedFeatures)
	c.addCacheFlag()
	c.addJSON("print the result as one JSON object")
	c.required = []string{"out"}
	c.takes(1, anyNumber, "name the folders of the shards")
	c.run = func(ctx context.Context, s Streams) error {
		opts.Drifted = c.warnDrift(s)
		meta, err := features.Merge(ctx, *out, c.Args(), opts)
		if err != nil {
			return err
		}
		set, err := features.Open(ctx, *out)
		if err != nil {
			return err
		}
		failed, err := set.Errors()
		if err = errors.Join(err, set.Close()); err != nil {
			return err
		}
		warnMixed(ForPeople(s.Err), c.cmd.Name(), meta)
		err = c.print(s, struct {
			Out      string             `json:"out"`
			N        int                `json:"n"`
			D        int                `json:"d"`
			Shards   int                `json:"shards"`
			Failed   int                `json:"failed"`
			Machines []features.Machine `json:"machines,omitempty"`
		}{*out, meta.N, meta.D, c.NArg(), len(failed), meta.Machines}, fmt.Sprintf("%s: %s × %s, %s, of %s (%d unreadable)\n",
			*out, count(meta.N, "image"), count(meta.D, "feature"), count(len(meta.Classes), "class"), count(c.NArg(), "shard"), len(failed)))
		if err == nil && len(failed) > 0 {
			err = fmt.Errorf("%w: %d, all listed in %s", ErrPartial, len(failed), filepath.Join(*out, "errors.jsonl"))
		}
		return err
	}
}
