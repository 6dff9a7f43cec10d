package training

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
)

// identity tells one training from another: the options that the heads depend on
// by name, and what they are trained on by checksums, whose names begin with
// "the ".
//
// Checkpoints hold it, so that the names and the way in which values are written
// are frozen. An option that is added later gets a name of its own, and must be
// left out where it has its default: a checkpoint of before does not have it.
type identity map[string]string

// Names that are handled specially.
const (
	rateName  = "Train.LR" // may be changed on demand
	splitName = "Split"    // is missing where rows are on their own
	startName = "Start"    // is missing where the head begins with the class means
	kindName  = "Conditioning.kind"
)

// identifyOptions names the options that the heads depend on. They have their
// defaults filled in. Options that are missing here, such as the shares of rows,
// show in the rows, or make no difference to the heads.
func identifyOptions(o Options) identity {
	shape := o.Head.Settings()
	id := identity{
		"Conditioning.dims":      written(o.Conditioning.Dims),
		kindName:                 string(o.Conditioning.Kind),
		"Conditioning.l2":        written(o.Conditioning.L2),
		"Conditioning.shrinkage": written(o.Conditioning.Shrinkage),

		"Paper":              written(!shape.Residual),
		"Head.Open":          written(shape.Residual),
		"Head.Layers":        written(shape.Layers),
		"Head.Centroids":     written(shape.Centroids),
		"Head.Projection":    written(shape.Projection),
		"Head.Norm":          written(shape.Norm),
		"Head.Recovery":      written(shape.Recovery),
		"Head.NoDepression":  written(shape.NoDepression),
		"Head.NoRatio":       written(shape.NoRatio),
		"Head.NoProjections": written(shape.NoProjections),
		"Head.SumLoss":       written(shape.SumLoss),

		"Train.Epochs":   written(o.Train.Epochs),
		"Train.Batch":    written(o.Train.Batch),
		rateName:         written(o.Train.LR),
		"Train.Patience": written(o.Train.Patience),
		"Train.Schedule": string(o.Train.Schedule),
		"Train.Balance":  written(o.Train.Balance),
		"Train.Seed":     written(o.Train.Seed),

		// The linear head was once trained by these.
		"Linear.Epochs":   "100",
		"Linear.Batch":    "128",
		"Linear.LR":       "0.001",
		"Linear.Patience": "50",
		"Linear.Schedule": "plateau",
		"Linear.Balance":  "false",
		"Linear.Seed":     "0",

		"Seeds":  fmt.Sprint(o.Seeds),
		"Scores": o.Score,
	}
	if c := o.Linear.C; c > 0 {
		id["Linear.C"] = written(c)
	}
	return id
}

// written returns a value as identities hold it.
func written[T bool | int | uint64 | float64](v T) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error() // not a number, which no option is
	}
	return string(text)
}

// identify adds to the options what the heads are trained on.
func (t *Data) identify(ctx context.Context) (identity, error) {
	id := identifyOptions(t.Options)
	classes, err := json.Marshal(t.Classes)
	if err != nil {
		return nil, err
	}
	if rule := t.rule(); rule != "" {
		id[splitName] = rule
	}
	if _, ok := t.Options.Head.(head.Residual); ok && !t.Options.fromMeans {
		id[startName] = "linear"
	}
	id["the classes"] = checksum(ctx, classes)
	id["the training features"] = checksumRows(ctx, t.Rows)
	id["the training labels"] = checksum(ctx, t.Labels)
	id["the choice of training images"] = checksum(ctx, wide(t.train.Index))
	id["the choice of validation images"] = checksum(ctx, wide(t.validation.Index))
	if t.Held != nil {
		id["the validation features"] = checksumRows(ctx, t.validation)
		id["the validation labels"] = checksum(ctx, t.validation.Labels)
	}
	return id, ctx.Err()
}

// differences says what another training has otherwise, in words.
func (id identity) differences(other identity) []string {
	all := maps.Clone(id)
	maps.Copy(all, other)
	var differ []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		was, is := id[key], other[key]
		switch {
		case was == is:
		case strings.HasPrefix(key, "the "):
			differ = append(differ, key+" are others")
		default:
			_, option, _ := strings.Cut(key, ".")
			differ = append(differ, fmt.Sprintf("%s was %s and is %s", strings.ToLower(cmp.Or(option, key)), was, is))
		}
	}
	return differ
}

// checksum is the SHA-256 of the values; it stops with ctx, and is wrong then.
func checksum[T float32 | int64 | byte](ctx context.Context, values []T) string {
	hash := sha256.New()
	add(ctx, hash, values)
	return hex.EncodeToString(hash.Sum(nil))
}

// checksumRows is the checksum of all rows, one after another.
func checksumRows(ctx context.Context, rows features.Rows) string {
	hash := sha256.New()
	for x := range rows.Chunks() {
		add(ctx, hash, x)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func add[T float32 | int64 | byte](ctx context.Context, to hash.Hash, values []T) {
	for block := range slices.Chunk(values, 1<<15) {
		if ctx.Err() != nil {
			break
		}
		binary.Write(to, binary.LittleEndian, block) // a hash takes all
	}
}
