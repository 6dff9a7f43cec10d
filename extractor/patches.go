package extractor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file says how strange each place of an image is, by what the model computes of it
// in the same pass.

// Patches is a model of what the patches of images look like: of the tokens of a transformer,
// or of the places of a map, of a few values within a graph. Of each value it has the mean
// and the covariance; an image is described by how far its patches are from these.
type Patches struct {
	Nodes []PatchNode
	// Images are the first 8 bytes of the SHA-256 of the images that it was fitted on,
	// ascending. None of them may calibrate a detector or validate it.
	Images []int64

	file []byte
}

// PatchNode is a Gaussian of the patches of one value of the graph.
type PatchNode struct {
	Name   string
	Mean   []float32 // [D]
	Whiten []float32 // [D, D]; the distance of a patch x is ‖W(x − mean)‖²
	Usual  float32   // the mean distance of the worst patches of images of the fit
	Shape  []int64   // of the value for an image; nil of models that do not say
}

// Bounds of a model of patches.
const (
	mostPatchNodes    = 3
	mostPatchChannels = 2048
	leastPatches      = 16   // places of an image
	worstShare        = 0.01 // of the patches of an image, whose mean distance is its worst
	patchNoise        = 0.01 // of the mean variance, which is added to each
	leastDistance     = 1e-9
	usualImages       = 16 // of the fit, that say what distances are usual
)

const patchesVersion = "1"

// newPatches returns a model of patches.
func newPatches(nodes []PatchNode, images []int64) (*Patches, error) {
	p := &Patches{Nodes: nodes, Images: images}
	tensors := []safetensors.Tensor{{Name: "images", Shape: []int{len(images)}, Data: images}}
	var names []string
	for i, n := range nodes {
		d, at := len(n.Mean), strconv.Itoa(i)
		names = append(names, n.Name)
		tensors = append(tensors, safetensors.Tensor{Name: at + ".mean", Shape: []int{d}, Data: n.Mean},
			safetensors.Tensor{Name: at + ".whiten", Shape: []int{d, d}, Data: n.Whiten},
			safetensors.Tensor{Name: at + ".usual", Shape: []int{1}, Data: []float32{n.Usual}})
		if n.Shape != nil {
			tensors = append(tensors, safetensors.Tensor{Name: at + ".shape", Shape: []int{len(n.Shape)}, Data: n.Shape})
		}
	}
	var b bytes.Buffer
	err := safetensors.Write(&b, map[string]string{"patches": patchesVersion, "nodes": strings.Join(names, "\n")}, tensors)
	p.file = b.Bytes()
	return p, err
}

// ReadPatches is the inverse of [Patches.File].
func ReadPatches(data []byte) (*Patches, error) {
	fail := func(err error) (*Patches, error) { return nil, fmt.Errorf("the model of patches: %w", err) }
	file, err := safetensors.Parse(data)
	if err != nil {
		return fail(err)
	}
	if v := file.Metadata["patches"]; v != patchesVersion {
		return fail(fmt.Errorf("it has version %q, and this program knows %s; a newer one reads it", v, patchesVersion))
	}
	r, p := &safetensors.Reader{File: file}, &Patches{file: data}
	if p.Images, _ = safetensors.Values[int64](r, "images"); !slices.IsSorted(p.Images) {
		return fail(errors.New("its images are not in order"))
	}
	for i, name := range strings.Split(file.Metadata["nodes"], "\n") {
		n, at := PatchNode{Name: name}, strconv.Itoa(i)
		n.Mean, _ = safetensors.Values[float32](r, at+".mean")
		n.Whiten, _ = safetensors.Values[float32](r, at+".whiten")
		usual, _ := safetensors.Values[float32](r, at+".usual")
		n.Shape, _, _ = safetensors.Optional[int64](r, at+".shape")
		if r.Err != nil {
			return fail(r.Err)
		}
		if d := len(n.Mean); i >= mostPatchNodes || d < 1 || d > mostPatchChannels || len(n.Whiten) != d*d || len(usual) != 1 || !(usual[0] > 0) ||
			n.Shape != nil && (len(n.Shape) == 0 || slices.Min(n.Shape) < 1 || elements(n.Shape) > maxRun) {
			return fail(fmt.Errorf("the tensors of %q do not fit together", name))
		}
		if err := errors.Join(npy.CheckValues(n.Mean), npy.CheckValues(n.Whiten), npy.CheckValues(usual)); err != nil {
			return fail(fmt.Errorf("%q: %w", name, err))
		}
		n.Usual = usual[0]
		p.Nodes = append(p.Nodes, n)
	}
	return p, nil
}

// File is the model as a safetensors file, for [ReadPatches]; nil of none.
func (p *Patches) File() []byte {
	if p == nil {
		return nil
	}
	return p.file
}

// String names the model by the hash of its file.
func (p *Patches) String() string {
	if p == nil {
		return ""
	}
	sum := sha256.Sum256(p.file)
	return hex.EncodeToString(sum[:8])
}

// Layer is the block of columns that an image has: of each node the logarithms of the worst
// and of the mean distance of its patches.
func (p *Patches) Layer() features.Layer {
	return features.Layer{Name: "patches of " + strings.Join(p.Names(), ", "), D: 2 * len(p.Nodes), Pool: features.PatchesPool + p.String()}
}

// Patches is the model that patches are described by; nil without.
func (m *Model) Patches() *Patches { return m.options.Patches }

// Names are those of the nodes.
func (p *Patches) Names() (names []string) {
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// Has reports whether the model was fitted on an image with that hash, in hexadecimal.
func (p *Patches) Has(sha256 string) bool {
	_, found := slices.BinarySearch(p.Images, shortHash(sha256))
	return found
}

func shortHash(text string) int64 {
	v, _ := strconv.ParseUint(text[:min(16, len(text))], 16, 64)
	return int64(v)
}

// patched is where the patches of a layer are, and what is known of them.
type patched struct {
	*PatchNode          // nil: it is to be fitted
	width, height  int  // places
	channels, skip int  // values of a place, and tokens before the first
	channelsLast   bool // as of tokens
}

// newPatched finds the places in a value of that shape for an image.
func newPatched(row []int64, height, width int) (p *patched, err error) {
	switch p = new(patched); len(row) {
	case 2:
		side, leading := patchSide(int(row[0]), height, width)
		if side == 0 {
			return nil, fmt.Errorf("its %d tokens are no grid over an image of %d×%d", row[0], width, height)
		}
		*p = patched{width: width / side, height: height / side, channels: int(row[1]), skip: leading, channelsLast: true}
	case 3:
		*p = patched{width: int(row[2]), height: int(row[1]), channels: int(row[0])}
		if row[0] == row[1] && row[1] != row[2] {
			*p = patched{width: int(row[1]), height: int(row[0]), channels: int(row[2]), channelsLast: true}
		}
	default:
		return nil, fmt.Errorf("it has %d dimensions; patches have 3 or 4", len(row)+1)
	}
	if p.places() < leastPatches || p.channels > mostPatchChannels {
		return nil, fmt.Errorf("it has %d places of %d values; at least %d places of at most %d values make a model of patches", p.places(), p.channels, leastPatches, mostPatchChannels)
	}
	return p, nil
}

func (p *patched) places() int { return p.width * p.height }

// rows returns the patches of an image, [places, channels].
func (p *patched) rows(out []float32) []float32 {
	if p.channelsLast {
		return out[p.skip*p.channels:]
	}
	x, n := make([]float32, len(out)), p.places()
	for c := range p.channels {
		for at, v := range out[c*n : (c+1)*n] {
			x[at*p.channels+c] = v
		}
	}
	return x
}

// distances returns how far each patch of an image is from the mean.
func (n *PatchNode) distances(x []float32) (far []float32) {
	d := len(n.Mean)
	centred, turned := slices.Clone(x), make([]float32, len(x))
	for patch := range slices.Chunk(centred, d) {
		for j, mean := range n.Mean {
			patch[j] -= mean
		}
	}
	linalg.NT(len(x)/d, d, d, centred, n.Whiten, turned)
	for patch := range slices.Chunk(turned, d) {
		sum := 0.
		for _, v := range patch {
			sum += float64(v) * float64(v)
		}
		far = append(far, float32(sum))
	}
	return far
}

// worst returns the mean of the largest hundredth of distances, at least of one, and that of all.
func worst(far []float32) (worst, mean float64) {
	n, largest := worstOf(len(far)), []float32(nil) // descending
	for _, v := range far {
		mean += float64(v) / float64(len(far))
		if len(largest) == n && v <= largest[n-1] {
			continue
		}
		at, _ := slices.BinarySearchFunc(largest, v, func(a, b float32) int { return cmp.Compare(b, a) })
		largest = slices.Insert(largest, at, v)[:min(n, len(largest)+1)]
	}
	for _, v := range largest {
		worst += float64(v) / float64(n)
	}
	return worst, mean
}

// worstOf is how many patches of an image are its worst.
func worstOf(places int) int { return max(1, int(math.Round(worstShare*float64(places)))) }

// PatchMap says how strange each place of an image is: its distance as a share of what is
// usual for the worst patches of images like those of the fit, less 1.
type PatchMap struct {
	Width, Height int
	Values        []float32  // row after row, from the top left
	Area          [4]float64 // what it covers; see preprocess.Spec.Seen
}

// describe writes the columns of an image, of whose layers out has the values and of whose
// patches the distances, and returns its map, over the places of the finest value.
func describe(columns []float32, layers []layer, out []*buffer, image int) *PatchMap {
	var all []*PatchMap
	for i, l := range layers {
		if l.patches == nil || l.patches.PatchNode == nil {
			continue
		}
		far := out[i].floats(image)
		most, mean := worst(far)
		columns[0], columns[1] = float32(math.Log(max(most, leastDistance))), float32(math.Log(max(mean, leastDistance)))
		columns = columns[2:]
		m := &PatchMap{Width: l.patches.width, Height: l.patches.height, Values: make([]float32, len(far))}
		for at, v := range far {
			m.Values[at] = v/l.patches.Usual - 1
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil
	}
	finest := slices.MaxFunc(all, func(a, b *PatchMap) int { return cmp.Compare(len(a.Values), len(b.Values)) })
	sum := &PatchMap{Width: finest.Width, Height: finest.Height, Values: make([]float32, len(finest.Values))}
	for _, m := range all {
		for at := range sum.Values {
			x, y := at%sum.Width*m.Width/sum.Width, at/sum.Width*m.Height/sum.Height
			sum.Values[at] += m.Values[y*m.Width+x] / float32(len(all))
		}
	}
	return sum
}

// choosePatches adds the values whose patches are described, or are to be.
func (m *Model) choosePatches(ctx context.Context, opts Options) error {
	if p := opts.Patches; p != nil {
		places, err := m.placesOf(ctx, p, false)
		for i, where := range places {
			m.addLayer(p.Nodes[i].Name)
			m.layers[len(m.layers)-1].patches = where
		}
		return err
	}
	names := opts.PatchNodes
	var err error
	if slices.Equal(names, []string{AutoLayers}) {
		if names, err = m.findPatches(ctx); err != nil {
			return err
		}
	}
	if len(names) > mostPatchNodes {
		return options.Errorf("PatchNodes", "%d values are named; at most %d make a model of patches", len(names), mostPatchNodes)
	}
	values, err := m.valuesOf("PatchNodes", names)
	for _, value := range values {
		m.addLayer(value)
		m.layers[len(m.layers)-1].patches = new(patched)
	}
	return err
}

// placesOf returns where the patches of a model of them are. Which shapes its values have is
// asked of the graph where the model does not say it, or always.
func (m *Model) placesOf(ctx context.Context, p *Patches, always bool) (all []*patched, err error) {
	var shapes [][]int64
	for _, n := range p.Nodes {
		shapes, always = append(shapes, n.Shape), always || n.Shape == nil
	}
	if _, err := m.valuesOf("PatchNodes", p.Names()); err != nil {
		return nil, err
	}
	if always {
		if shapes, err = m.shapesOf(ctx, p.Names()); err != nil {
			return nil, err
		}
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		where, err := newPatched(shapes[i], m.Spec.Height, m.Spec.Width)
		if err == nil && (len(n.Mean) != where.channels || n.Shape != nil && !slices.Equal(n.Shape, shapes[i])) {
			err = fmt.Errorf("it has %d values at a place, and the model of patches %d: they are of another graph", where.channels, len(n.Mean))
		}
		if err != nil {
			return nil, options.Errorf("PatchNodes", "%s: %w", n.Name, err)
		}
		where.PatchNode = n
		all = append(all, where)
	}
	return all, nil
}

// autoPatches are the shares of the network's depth at which the patches of AutoLayers lie:
// small defects are seen early, and by more than their colour.
var autoPatches = []float64{0.1, 0.2, 0.3}

// findPatches returns the values that are a few of the network's blocks' ends.
func (m *Model) findPatches(ctx context.Context) (names []string, err error) {
	usable, err := m.usable(ctx, "PatchNodes", func(row []int64) error {
		_, err := newPatched(row, m.Spec.Height, m.Spec.Width)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, share := range autoPatches {
		// Of the ends whose patches can be told, the one nearest to that depth.
		off := func(name string) float64 {
			return math.Abs(float64(slices.Index(m.ends, name)) - share*float64(len(m.ends)))
		}
		slices.SortStableFunc(usable, func(a, b string) int { return cmp.Compare(off(a), off(b)) })
		if len(usable) > 0 {
			names, usable = append(names, usable[0]), usable[1:]
		}
	}
	if len(names) == 0 {
		return nil, options.Errorf("PatchNodes", "no block of the graph has %d places or more; name values of it", leastPatches)
	}
	return names, nil
}

// moments are sums over patches.
type moments struct {
	n         float64
	first     []float64 // which values are relative to, so that squares do not cancel
	sum, gram []float64
	kept      [][]float32 // of the first images
}

func (m *moments) add(x []float32, d int) {
	if m.first == nil {
		m.first, m.sum, m.gram = make([]float64, d), make([]float64, d), make([]float64, d*d)
		for j := range d {
			m.first[j] = float64(x[j])
		}
	}
	if len(m.kept) < usualImages {
		m.kept = append(m.kept, x)
	}
	rows := make([]float64, 0, len(x))
	for patch := range slices.Chunk(x, d) {
		for j, v := range patch {
			rows = append(rows, float64(v)-m.first[j])
			m.sum[j] += float64(v) - m.first[j]
		}
	}
	m.n += float64(len(x) / d)
	kernels.BLAS{}.Dsyrk(blas.Upper, blas.Trans, d, len(x)/d, 1, rows, d, 1, m.gram, d)
}

// fit returns the Gaussian of what was added.
func (m *moments) fit(name string, shape []int64) (PatchNode, error) {
	d := len(m.sum)
	node := PatchNode{Name: name, Shape: shape, Mean: make([]float32, d)}
	for j, s := range m.sum {
		node.Mean[j] = float32(m.first[j] + s/m.n)
		for k := j; k < d; k++ {
			m.gram[j*d+k] = (m.gram[j*d+k] - s*m.sum[k]/m.n) / m.n
		}
	}
	sigma := mat.NewSymDense(d, m.gram)
	values, vectors, err := linalg.Eigen(sigma)
	if err != nil {
		return node, fmt.Errorf("patches of %s: %w", name, err)
	}
	noise := patchNoise * sigma.Trace() / float64(d)
	if !(noise > 0) {
		return node, fmt.Errorf("patches of %s: all are the same", name)
	}
	for i, v := range values {
		for j := range d {
			node.Whiten = append(node.Whiten, float32(vectors.At(i, j)/math.Sqrt(max(v, 0)+noise)))
		}
	}
	for _, x := range m.kept {
		most, _ := worst(node.distances(x))
		node.Usual += float32(most / float64(len(m.kept)))
	}
	return node, nil
}

// FitPatches fits a model of the patches of some images, of the values that
// [Options.PatchNodes] names. No patches are stored, and the same images give the same
// model, however many workers there are. Images that cannot be read are left out.
func (m *Model) FitPatches(ctx context.Context, some []images.Item, opts Options) (*Patches, error) {
	var nodes []layer
	var shapes [][]int64
	for i, l := range m.layers {
		if l.patches != nil {
			nodes, shapes = append(nodes, l), append(shapes, m.outputs[len(m.outputs)-len(m.layers)+i].row)
		}
	}
	opts.Batch, opts.Progress, opts.Chosen = cmp.Or(opts.Batch, 1), nil, nil
	sums, hashes := make([]moments, len(nodes)), []int64(nil)
	next, early := 0, map[int]Row{}
	_, err := m.Extract(ctx, images.Of(some...), opts, func(r Row) error {
		early[r.Index] = Row{SHA256: r.SHA256, Err: r.Err, patches: r.patches}
		for {
			r, ok := early[next]
			if !ok {
				return nil
			}
			delete(early, next)
			if next++; r.Err != nil {
				continue
			}
			hashes = append(hashes, shortHash(r.SHA256))
			for i, x := range r.patches {
				sums[i].add(x, nodes[i].patches.channels)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("none of the %d images that a model of patches is fitted on could be read", len(some))
	}
	var fitted []PatchNode
	for i, l := range nodes {
		node, err := sums[i].fit(l.name, shapes[i])
		if err != nil {
			return nil, err
		}
		fitted = append(fitted, node)
	}
	slices.Sort(hashes)
	return newPatches(fitted, slices.Compact(hashes))
}
