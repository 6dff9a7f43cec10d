// Package features stores feature sets on disk: the features that a backbone
// computed for a folder of images, once, for all later steps.
//
// A set is a folder:
//
//	features.npy   float32 [N, D], or float16
//	labels.npy     int64 [N], −1 for an image without a label
//	logits.npy     float32 [N, C], if the backbone has a classifier
//	layers.npy     float32 [N, L], if values within the backbone were asked for
//	patches.safetensors  the model of patches that columns of layers.npy come from, if any
//	images.jsonl   one [Image] per line (path, label, bytes, mtime, sha256), in the order of the rows
//	errors.jsonl   one [Failure] per line (path, error): images that could not be read
//	features.parquet  the same rows as Parquet, if asked for
//	positions.npy  int64 [N], only in a shard: each row's place in the whole set
//	sources.jsonl  one line per tar or Parquet file that was read to its end, if images came from such
//	features.json  the [Meta], with the checksums of all these
//
// [Open] reads one. Sets of other programs need only features.npy. [Create] writes
// one; it can be interrupted at any moment and continues from there when it is
// called again. [Merge] makes one of shards.
package features

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// Version is the newest version of the format that this package writes and reads.
//
// Version 1 had no checksums, and no shards. Versions 1 and 2 have %XX in paths for
// bytes that are not UTF-8, and %25 for a % that could be read as the start of such
// a code. Version 3 has paths unchanged, and bytes that are not UTF-8 as NUL and
// two hexadecimal digits. A set whose paths are the same in both is written as
// version 2. Version 4 has features as float16.
const Version = 4

// pathVersion is the version of sets with paths that version 2 does not have.
const pathVersion = 3

// plainVersion is the version of sets whose paths are the same in versions 2 and 3.
const plainVersion = 2

// Names of a set's files. The last two hold the weight [C, D] and the bias [C] of
// the backbone's own classifier; this package reads and copies them, but does not
// make them.
const (
	featuresFile = "features.npy"
	parquetFile  = "features.parquet"
	labelsFile   = "labels.npy"
	logitsFile   = "logits.npy"
	layersFile   = "layers.npy"
	patchesFile  = "patches.safetensors"
	imagesFile   = "images.jsonl"
	errorsFile   = "errors.jsonl"
	placesFile   = "positions.npy"
	sourcesFile  = "sources.jsonl"
	metaFile     = "features.json"
	weightFile   = "fc_weight.npy"
	biasFile     = "fc_bias.npy"
)

// Errors to be tested for with errors.Is. Those that wrap them name the folder
// or file and say what to do.
var (
	// ErrNotSet says that a folder exists but is not a feature set.
	ErrNotSet = errors.New("not a feature set")
	// ErrDamaged says that the files of a set are malformed or disagree.
	ErrDamaged = parts.ErrDamaged
	// ErrVersion says that a set is of a newer version of the format.
	ErrVersion = errors.New("written by a newer version of this program")
	// ErrFingerprint says that sets must not be mixed.
	ErrFingerprint = errors.New("made by another model or preprocessing")
	// ErrOtherImages says that a set of the images in another folder would be
	// replaced.
	ErrOtherImages = errors.New("made of images in another folder")
	// ErrOtherShard says that a set is not the wanted part of a whole.
	ErrOtherShard = errors.New("another shard than the one that was asked for")
	// ErrLocked says that another process is writing to the set.
	ErrLocked = parts.ErrLocked
	// ErrLayers says that a set lacks a layer that is asked for.
	ErrLayers = errors.New("lack layers")
	// ErrShards says that sets are not all the shards of one whole.
	ErrShards = parts.ErrShards
)

// Meta is features.json. A set of another program has only N, D and Classes.
type Meta struct {
	Version     int             `json:"version"`
	N           int             `json:"n"`                               // rows
	D           int             `json:"d"`                               // features of a row
	DType       string          `json:"dtype,omitempty"`                 // Float16, or "" for float32
	Classes     []string        `json:"classes"`                         // names of the labels 0, 1, …
	Root        string          `json:"root"`                            // folder that images' paths are relative to
	Model       string          `json:"model"`                           // folder of the model; "pixels" for pixels themselves
	ModelSHA256 string          `json:"model_sha256"`                    // of its ONNX file
	Output      string          `json:"output"`                          // output of the model that is the embedding
	Pool        string          `json:"pool"`                            // how the output was pooled; "" if it was not
	Preprocess  json.RawMessage `json:"preprocess"`                      // how images were preprocessed; null if unknown
	Fingerprint string          `json:"fingerprint"`                     // of model, output, pooling and preprocessing together
	Layers      []Layer         `json:"layers,omitempty"`                // columns of layers.npy, in order
	Embedding   string          `json:"embedding_fingerprint,omitempty"` // with Layers, the fingerprint without them
	Tool        string          `json:"tool"`                            // program and version that made the set
	Machines    []Machine       `json:"machines,omitempty"`              // the machines that computed the rows, each once; none if unknown
	Probe       *Probe          `json:"probe,omitempty"`                 // what the model answered there; nil if unknown
	Shard       *Part           `json:"shard,omitempty"`                 // which part of a whole it is; nil for a whole set
	Files       map[string]Sum  `json:"files,omitempty"`                 // checksums of the other files that it was made with, by name
	SHA256      string          `json:"sha256,omitempty"`                // of features.json itself, with 64 zeros in place of these digits
}

// Layer is a block of columns of layers.npy: what a value within the model's graph comes to
// for an image.
type Layer struct {
	Name string `json:"name"`           // of the value
	D    int    `json:"d"`              // its columns
	Pool string `json:"pool,omitempty"` // "cls+mean" of tokens, "mean" over places, "" for a vector as it is, or OfPatches
}

// PatchesPool begins the Pool of a layer that says how strange the patches of an image are;
// the hash of the model of patches follows.
const PatchesPool = "patches "

// OfPatches reports whether the layer is of the patches of images.
func (l Layer) OfPatches() bool { return strings.HasPrefix(l.Pool, PatchesPool) }

// Space is the fingerprint of the features alone, without layers.
func (m Meta) Space() string { return cmp.Or(m.Embedding, m.Fingerprint) }

// LayersFingerprint is the fingerprint of features of a fingerprint followed by layers.
func LayersFingerprint(embedding string, layers []Layer) string {
	if len(layers) == 0 {
		return embedding
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %+v", embedding, layers))
	return hex.EncodeToString(sum[:])
}

// maxLayer bounds the columns of a layer.
const maxLayer = 1 << 20

// Columns returns the columns from … to−1 of rows of d values, copied unless they are all.
func Columns(x []float32, d, from, to int) []float32 {
	if to-from == d {
		return x
	}
	some := make([]float32, 0, len(x)/d*(to-from))
	for row := range slices.Chunk(x, d) {
		some = append(some, row[from:to]...)
	}
	return some
}

// LayersDim returns the columns of all layers.
func LayersDim(layers []Layer) (d int) {
	for _, l := range layers {
		d += l.D
	}
	return d
}

// Float16 is the DType of sets whose features are rounded to 16 bits.
const Float16 = "float16"

// Machine says what features were computed with, as far as they may depend on it.
// It is not part of the fingerprint: it changes at most the last bits of features,
// except for quantised models.
type Machine struct {
	Kernels  string `json:"kernels"`                 // instruction set of the preprocessing
	Runtime  string `json:"onnxruntime,omitempty"`   // version of the library that ran the model
	Provider string `json:"provider,omitempty"`      // the device that it ran on
	Products string `json:"int8_products,omitempty"` // of a quantised model: exact, saturating or unknown
}

// less orders machines.
func (m Machine) less(o Machine) int {
	return cmp.Or(cmp.Compare(m.Kernels, o.Kernels), cmp.Compare(m.Runtime, o.Runtime), cmp.Compare(m.Provider, o.Provider), cmp.Compare(m.Products, o.Products))
}

// union returns the machines of both, each once, in order.
func union(a, b []Machine) []Machine {
	all := slices.Concat(a, b)
	slices.SortFunc(all, Machine.less)
	return slices.Compact(all)
}

// Mixed tells whether a quantised model computed rows on machines that differ, so
// that the rows may not be comparable.
func (m Meta) Mixed() bool {
	return len(m.Machines) > 1 && slices.ContainsFunc(m.Machines, func(m Machine) bool { return m.Products != "" })
}

// Shard says from which of several parts of a listing a set is made. The zero value
// is the whole listing.
type Shard = parts.Shard

// ParseShard is the inverse of [Shard.String].
func ParseShard(text string) (Shard, error) { return parts.ParseShard(text) }

// Part is a Shard of a known listing.
type Part struct {
	Shard
	Images  int    `json:"images"`          // in the whole listing; 0 with Units
	Listing string `json:"listing"`         // SHA-256 of its paths, which all shards of one whole share
	Units   int    `json:"units,omitempty"` // files of the whole listing, if some are tars or the like, whose images nobody counted
}

// Image is the entry of images.jsonl for an image. Any program can read its path: a
// UTF-8 path is written unchanged; for another one, path_bytes has its bytes in
// base64.
type Image struct {
	Path   string  // relative to the root, with forward slashes; the bytes that the file system has
	Label  *string // name of its class; nil if it has none
	Bytes  int64   // size of the file, or of the pixels of an image in an idx file
	MTime  int64   // time of the file's last change, in nanoseconds since 1970
	SHA256 string  // of those bytes, 64 lower-case hexadecimal digits
}

// Failure is the entry of errors.jsonl for an image, or another file, that could
// not be read.
type Failure struct {
	Path  string // as in Image
	Error string
}

// imageLine is a line of images.jsonl.
type imageLine struct {
	Path      string  `json:"path"`
	PathBytes []byte  `json:"path_bytes,omitempty"`
	Label     *string `json:"label"`
	Bytes     int64   `json:"bytes"`
	MTime     int64   `json:"mtime"`
	SHA256    string  `json:"sha256"`
}

// failureLine is a line of errors.jsonl.
type failureLine struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	Error     string `json:"error"`
}

// decodePath reads a path in a file of a version of the format; 0 means a set of
// another program.
func decodePath(version int, text string) string {
	if version == 1 || version == 2 {
		return disk.DecodePercent(text)
	}
	return disk.DecodePath(text)
}

// needsVersion returns the version of the format that a path must be written in.
func needsVersion(path string) int {
	if disk.EncodePercent(path) != path {
		return pathVersion
	}
	return plainVersion
}

// parseMeta reads features.json. Errors do not name the file.
func parseMeta(data []byte) (Meta, error) {
	// The version first: a newer one may differ in everything else.
	var version struct{ Version int }
	if err := json.Unmarshal(data, &version); err != nil {
		return Meta{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if version.Version > Version {
		return Meta{}, fmt.Errorf("%w: it has version %d, %d is the newest known here", ErrVersion, version.Version, Version)
	}
	var m Meta
	if err := json.Unmarshal(data, &m); err != nil {
		return Meta{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	// Damage first, before errors that it may have caused.
	if m.Version > 1 && !sealed(data, m.SHA256) {
		return Meta{}, fmt.Errorf("%w: it was altered or cut short: its checksum does not match", ErrDamaged)
	}
	if m.Version == 1 && (m.SHA256 != "" || m.Files != nil || m.Shard != nil) {
		return Meta{}, fmt.Errorf("%w: it says that it has version 1, which had no checksums", ErrDamaged)
	}
	if m.DType != "" && (m.DType != Float16 || m.Version < 4) {
		return Meta{}, fmt.Errorf("%w: features of type %q are not known in version %d", ErrDamaged, m.DType, m.Version)
	}
	if slices.ContainsFunc(m.Layers, func(l Layer) bool { return l.Name == "" || l.D < 1 || l.D > maxLayer }) {
		return Meta{}, fmt.Errorf("%w: layers %v cannot be", ErrDamaged, m.Layers)
	}
	if m.Version < 1 || m.N < 0 || m.D < 1 {
		return Meta{}, fmt.Errorf("%w: version %d, n %d or d %d cannot be", ErrDamaged, m.Version, m.N, m.D)
	}
	if m.Probe != nil {
		if err := m.Probe.Validate(m.D + LayersDim(m.Layers)); err != nil {
			return Meta{}, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, m.Preprocess); err == nil {
		m.Preprocess = compact.Bytes()
	}
	m.Root, m.Model = decodePath(m.Version, m.Root), decodePath(m.Version, m.Model)
	return m, nil
}

// encode is the inverse of parseMeta; it computes the checksum.
func (m Meta) encode() ([]byte, error) {
	m.SHA256 = noSum
	m.Root, m.Model = disk.EncodePath(m.Root), disk.EncodePath(m.Model)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(m); err != nil {
		return nil, err
	}
	seal(b.Bytes())
	return b.Bytes(), nil
}

// maxLine bounds a line of images.jsonl and errors.jsonl.
const maxLine = 1 << 20

// readLines reads a file of one JSON object per line.
func readLines[T any](r io.Reader, each func(T) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrDamaged, n, err)
		}
		if err := each(v); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%w: a line is longer than %d bytes", ErrDamaged, maxLine)
	}
	return lines.Err()
}
