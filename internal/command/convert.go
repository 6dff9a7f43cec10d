package command

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/report"
)

var _ = declare("convert", 140, "--out FEATURES FEATURES|FILE.parquet [flags]", "Write features as float16 or Parquet, or read them from Parquet",
	`Writes a feature set again: with features of 16 bits, with a Parquet file beside them, or as one set of a set's parts. It also makes a feature set of a Parquet file with the columns path and embedding (a list of float32) and, if known, label and hash.`, addConvert)

func addConvert(c *command) {
	c.readsURLs = []string{""}
	c.section("output")
	out := c.String("out", "", "folder `FEATURES` to write the feature set to")
	c.means("out", "Out")
	var o features.Conversion
	c.sets(&o)
	Choice(c.FlagSet, &o.DType, "dtype", "float32", "float32|float16", "type of features.npy; float16 takes half the disk")
	c.BoolVar(&o.Parquet, "parquet", false, "write FEATURES/features.parquet too, for Spark, DuckDB, pandas")
	thumbnails := c.Bool("thumbnails", false, "write FEATURES/features.parquet with a small picture of each image, as Hugging Face's datasets has them")
	c.means("thumbnails", "Thumbnails")
	roots := c.StringArray("images", nil, "`FOLDER` that the pictures may come from (repeat); default: the one that the feature set records")
	c.BoolVar(&o.Force, "force", false, "replace a set of another model, preprocessing or folder, or a damaged one")
	c.addCacheFlag()
	c.addJSON("print the result as one JSON object")
	c.required = []string{"out"}
	c.takes(1, 1, "name one feature set or .parquet file to convert")
	c.run = func(ctx context.Context, s Streams) error {
		if o.DType == "float32" {
			o.DType = ""
		}
		if *thumbnails {
			if strings.HasSuffix(c.Arg(0), ".parquet") {
				return Usagef("--thumbnails goes with a feature set, which says where its images are")
			}
			o.Parquet = true
			o.Thumbnails = func(set *features.Set) (iter.Seq[[]byte], error) {
				pictures, err := images.Again(ctx, set, *roots)
				return report.Thumbnails(pictures), err
			}
		}
		meta, err := features.Convert(ctx, *out, c.Arg(0), o)
		if err != nil {
			return err
		}
		return c.print(s, struct {
			Out string `json:"out"`
			N   int    `json:"n"`
			D   int    `json:"d"`
		}{*out, meta.N, meta.D}, fmt.Sprintf("%s: %s × %s, %s\n", *out, count(meta.N, "image"), count(meta.D, "feature"), count(len(meta.Classes), "class")))
	}
}
