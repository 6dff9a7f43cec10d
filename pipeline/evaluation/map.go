package evaluation

import (
	"context"
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// mostAxes is how many axes a map has, at most.
const mostAxes = 4

// SummaryMap is images on the axes that tell the classes apart best: linear discriminant axes. In whitened features, where images of a class vary equally in all directions,
// these are the principal axes of the class means.
type SummaryMap struct {
	Points []Point
	Images int // that the points were chosen from, evenly over the classes
	// Shares of the variance between the class means that lie along the axes, of which
	// there are two or more. With two classes there is one such axis; the second is
	// then the one along which the images differ most otherwise, and its share is 0.
	Shares []float64
}

// Point is an image on the map.
type Point struct {
	At      []float64 // on each axis, in standard deviations of the images of a class
	Image   images.Picture
	Class   int // its label
	Part    SummaryPart
	Verdict detector.Verdict
}

// axisRows is how many training rows the axes are fitted on, at most.
const axisRows = 5000

// MapAxes are the axes of a map.
type MapAxes struct {
	Shares []float64 // see SummaryMap
	white  *head.Conditioning
	mean   []float64   // of the class means, whitened
	axes   [][]float64 // of length 1
}

// NewMapAxes fits the axes of the map of a detector on its training rows; see
// [SummaryOptions].Features for dirs. It is nil where there are not two rows.
func NewMapAxes(ctx context.Context, d *detector.Detector, dirs []string) (*MapAxes, error) {
	data, err := d.OpenTraining(ctx, dirs)
	if err != nil {
		return nil, err
	}
	axes, err := (&Summary{Detector: d, data: data}).mapAxes(ctx)
	return axes, errors.Join(err, data.Close())
}

// mapAxes is NewMapAxes with the training rows of s.
func (s *Summary) mapAxes(ctx context.Context) (*MapAxes, error) {
	train := s.spread(s.data.Train, axisRows)
	if len(train) < 2 {
		return nil, nil
	}
	white, z, err := s.whitened(ctx, train)
	if err != nil {
		return nil, err
	}
	m := discriminants(z, white.Out(), train, s.data.Labels, len(s.Detector.Classes))
	m.white = white
	m.complete(z, white.Out())
	m.Shares = append(m.Shares, make([]float64, len(m.axes)-len(m.Shares))...)
	return m, nil
}

// Place returns where rows of embeddings lie on each axis.
func (m *MapAxes) Place(ctx context.Context, x []float32) ([][]float64, error) {
	places := make([][]float64, len(x)/m.white.In())
	z, err := m.white.Rows(ctx, features.Rows{X: x, D: m.white.In(), Index: lists.UpTo(len(places))})
	if err != nil {
		return nil, err
	}
	for i := range places {
		for _, axis := range m.axes {
			places[i] = append(places[i], along(axis, z[i*m.white.Out():(i+1)*m.white.Out()], m.mean))
		}
	}
	return places, nil
}

// drawMap makes the map; nil where there are not two rows to fit axes on.
func (s *Summary) drawMap(ctx context.Context, pictures images.Set, parts []SummaryPart, points int) (*SummaryMap, error) {
	var labelled []int
	for row, y := range s.data.Labels {
		if y >= 0 {
			labelled = append(labelled, row)
		}
	}
	rows := s.spread(labelled, points)
	axes, err := s.mapAxes(ctx)
	if axes == nil || len(rows) == 0 || err != nil {
		return nil, err
	}
	places, err := axes.Place(ctx, s.gather(rows))
	if err != nil {
		return nil, err
	}
	m := &SummaryMap{Images: len(labelled), Shares: axes.Shares}
	for i, row := range rows {
		p := Point{At: places[i], Class: int(s.data.Labels[row]), Part: parts[row]}
		if pictures.Image != nil {
			p.Image = pictures.Image(row)
		}
		m.Points = append(m.Points, p)
	}
	at := 0
	return m, s.Detector.EachVerdict(ctx, s.data.Row, rows, func(_ int, v detector.Verdict) {
		m.Points[at].Verdict = v
		at++
	})
}

// spread returns about n of the rows, ascending, as evenly as possible over the classes.
func (s *Summary) spread(rows []int, n int) []int {
	return features.Rows{Labels: s.data.Labels, Index: rows}.Balanced(n)
}

// gather copies the embeddings of rows.
func (s *Summary) gather(rows []int) []float32 {
	x := make([]float32, 0, len(rows)*s.Detector.Dim())
	for _, row := range rows {
		x = append(x, s.data.Row(row)...)
	}
	return s.Detector.Embeddings(x)
}

// whitened returns a map of features to whitened ones, the head's own where it whitens,
// and the whitened training rows.
func (s *Summary) whitened(ctx context.Context, train []int) (*head.Conditioning, []float32, error) {
	x := s.gather(train)
	c := s.Detector.Heads[0].Conditioning
	if c == nil || c.Kind != head.Whiten {
		labels := lists.Map(train, func(row int) int64 { return s.data.Labels[row] })
		o := head.ConditioningOptions{Kind: head.Whiten, Shrinkage: 0.1, L2: c != nil && c.L2}
		var err error
		if c, err = head.FitConditioning(ctx, features.All(x, s.Detector.Heads[0].Dim(), labels), features.Rows{}, len(s.Detector.Classes), o); err != nil {
			return nil, nil, err
		}
	}
	z, err := c.Rows(ctx, features.Rows{X: x, D: s.Detector.Heads[0].Dim(), Index: lists.UpTo(len(train))})
	return c, z, err
}

// discriminants returns the principal axes of the class means of the rows z [n, e], at
// most mostAxes and an even number of them unless it is one, and the shares of the variance between the means along them.
func discriminants(z []float32, e int, rows []int, labels []int64, classes int) *MapAxes {
	sums, counts := make([][]float64, classes), make([]float64, classes)
	for i, row := range rows {
		y := labels[row]
		if sums[y] == nil {
			sums[y] = make([]float64, e)
		}
		counts[y]++
		for j, v := range z[i*e : (i+1)*e] {
			sums[y][j] += float64(v)
		}
	}
	var means [][]float64
	a := &MapAxes{mean: make([]float64, e)}
	for y, sum := range sums {
		if sum == nil {
			continue
		}
		for j := range sum {
			sum[j] /= counts[y]
		}
		means = append(means, sum)
	}
	for _, m := range means {
		for j, v := range m {
			a.mean[j] += v / float64(len(means))
		}
	}
	for _, m := range means {
		for j := range m {
			m[j] -= a.mean[j]
		}
	}
	if len(means) < 2 {
		return a
	}
	found, values, total := principal(means, min(mostAxes, len(means)-1))
	for k, axis := range found {
		if values[k] <= 1e-9*total {
			break
		}
		a.axes, a.Shares = append(a.axes, axis), append(a.Shares, values[k]/total)
	}
	if n := len(a.Shares); n > 1 {
		a.axes, a.Shares = a.axes[:n/2*2], a.Shares[:n/2*2]
	}
	return a
}

// principal returns the first most principal axes of centred rows, with their
// variances and the sum of all, by way of the products of the rows.
func principal(rows [][]float64, most int) (found [][]float64, values []float64, total float64) {
	n := len(rows)
	gram := mat.NewSymDense(n, nil)
	for i := range n {
		for j := i; j < n; j++ {
			var sum float64
			for k, v := range rows[i] {
				sum += v * rows[j][k]
			}
			gram.SetSym(i, j, sum)
		}
	}
	ascending, vectors, err := linalg.Eigen(gram)
	if err != nil {
		return nil, nil, 0
	}
	for k := range n {
		at := n - 1 - k
		value := max(ascending[at], 0)
		total += value
		if k >= most {
			continue
		}
		axis := make([]float64, len(rows[0]))
		for i, row := range rows {
			for j, v := range row {
				axis[j] += vectors.At(at, i) * v
			}
		}
		normaliseRow(axis)
		found, values = append(found, axis), append(values, value)
	}
	return found, values, total
}

// complete adds axes along which the rows x [n, e] differ most otherwise, where there are
// less than two.
func (a *MapAxes) complete(x []float32, e int) {
	for len(a.axes) < 2 {
		rows := make([][]float64, len(x)/e)
		mean := make([]float64, e)
		for i := range rows {
			rows[i] = make([]float64, e)
			for j, v := range x[i*e : (i+1)*e] {
				rows[i][j] = float64(v) - a.mean[j]
			}
			for _, axis := range a.axes {
				var length float64
				for j, v := range axis {
					length += v * rows[i][j]
				}
				for j, v := range axis {
					rows[i][j] -= length * v
				}
			}
			for j, v := range rows[i] {
				mean[j] += v / float64(len(rows))
			}
		}
		for _, row := range rows {
			for j, v := range mean {
				row[j] -= v
			}
		}
		found, _, _ := principal(rows, 1)
		if len(found) == 0 {
			found = [][]float64{make([]float64, e)}
		}
		a.axes = append(a.axes, found[0])
	}
}

// normaliseRow gives an axis the length 1 and its largest value a positive sign, so that
// a map is not mirrored by chance.
func normaliseRow(axis []float64) {
	length, most := 0., 0.
	for _, v := range axis {
		length += v * v
		if math.Abs(v) > math.Abs(most) {
			most = v
		}
	}
	if length == 0 {
		return
	}
	scale := math.Copysign(1/math.Sqrt(length), most)
	for j := range axis {
		axis[j] *= scale
	}
}

// along returns how far along an axis a row lies from a mean.
func along(axis []float64, row []float32, mean []float64) (sum float64) {
	for i, v := range axis {
		sum += v * (float64(row[i]) - mean[i])
	}
	return sum
}
