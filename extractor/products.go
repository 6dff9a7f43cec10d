package extractor

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// What [Products] returns.
const (
	ExactProducts      = "exact"
	SaturatingProducts = "saturating"
	UnknownProducts    = "unknown" // the library does not say
)

// Products says what the loaded onnxruntime makes of products of 8-bit numbers
// on this machine's processor. On x86-64 with AVX2 and without VNNI sums of two
// of them are cut off at 16 bits, so that a quantised model has other features
// there than elsewhere. The answer is that of a small graph which is run once.
func Products() string { return products() }

var products = sync.OnceValue(func() string {
	if err := InitRuntime(""); err != nil {
		return UnknownProducts
	}
	sum, err := sumOfProducts()
	switch {
	case err != nil:
		return UnknownProducts
	case sum == productsLength*255*127:
		return ExactProducts
	case sum == productsLength/2*math.MaxInt16:
		return SaturatingProducts
	default:
		return UnknownProducts
	}
})

// productsLength is the number of products that are added up, and the size of
// the matrices otherwise: what every kernel takes.
const productsLength = 16

// sumOfProducts multiplies the largest numbers by the largest weights.
func sumOfProducts() (sum int32, err error) {
	const n = productsLength
	g, err := onnx.New(13, "mlrbfn", "")
	if err != nil {
		return 0, err
	}
	g.Output("sum", g.Op("MatMulInteger", g.Input("x", onnx.Uint8, n, n), g.Input("w", onnx.Int8, n, n)), onnx.Int32, n, n)
	var graph bytes.Buffer
	if err := g.Write(&graph); err != nil {
		return 0, err
	}
	x, xErr := ort.NewTensor(ort.NewShape(n, n), bytes.Repeat([]byte{255}, n*n))
	w, wErr := ort.NewTensor(ort.NewShape(n, n), slices.Repeat([]int8{127}, n*n))
	out, err := ort.NewEmptyTensor[int32](ort.NewShape(n, n))
	if err := errors.Join(xErr, wErr, err); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Destroy(), w.Destroy(), out.Destroy()) }()
	session, err := ort.NewDynamicAdvancedSessionWithONNXData(graph.Bytes(), []string{"x", "w"}, []string{"sum"}, nil)
	if err != nil {
		return 0, err
	}
	err = session.Run([]ort.Value{x, w}, []ort.Value{out})
	return out.GetData()[0], errors.Join(err, session.Destroy())
}
