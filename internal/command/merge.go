// Merge makes one feature set of the shards that `extract --shard` wrote.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"mlrbfn/features"
	"mlrbfn/internal/cli"
)

func main() { cli.Main("merge", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := cli.Flags("merge", "--out FEATURES SHARD… [flags]",
		`Makes one feature set of all the shards that `+"`extract --shard i/n`"+` wrote, given in
any order: the set, byte for byte, that one run over all images would have given.
Shards that are missing, unfinished, damaged or not of one whole are refused.`, stdout)
	out := f.String("out", "", "folder `FEATURES` to write the feature set to")
	force := f.Bool("force", false, "replace a feature set of another model, preprocessing or image folder, a damaged or an unfinished one")
	asJSON := f.Bool("json", false, "print the outcome as one JSON object")
	if err := cli.Parse(f, args, "out"); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return cli.Usagef("name the folders of the shards")
	}
	meta, err := features.Merge(ctx, *out, f.Args(), features.Options{Force: *force})
	if err != nil {
		return err
	}
	set, err := features.Open(*out)
	if err != nil {
		return err
	}
	failed, err := set.Errors()
	if err = errors.Join(err, set.Close()); err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(struct {
			Out    string `json:"out"`
			N      int    `json:"n"`
			D      int    `json:"d"`
			Shards int    `json:"shards"`
			Failed int    `json:"failed"`
		}{*out, meta.N, meta.D, f.NArg(), len(failed)})
	} else {
		_, err = fmt.Fprintf(stdout, "%s: %d images × %d features, %d classes, of %d shards (%d unreadable)\n",
			*out, meta.N, meta.D, len(meta.Classes), f.NArg(), len(failed))
	}
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%w: %d, all listed in %s", cli.ErrPartial, len(failed), filepath.Join(*out, "errors.jsonl"))
	}
	return err
}
