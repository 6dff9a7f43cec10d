package evaluation

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestEvaluateNeedsLayers: where the training features have layers, which scores may read,
// sets of the same embedding without them are refused and not judged by other columns.
func TestEvaluateNeedsLayers(t *testing.T) {
	t.Parallel()
	create := func(width int) string {
		return pipetest.Layered(t, 1, width, (*rand.Rand).NormFloat64, 60, []string{"one", "two"}, pipetest.Two...)
	}
	opts := Options{Train: quick(create(2)), ID: create(2), OOD: []OODSet{{metrics.Near, "a", create(0)}}, Out: t.TempDir()}
	if _, err := Evaluate(t.Context(), opts); !errors.Is(err, features.ErrLayers) || !strings.Contains(err.Error(), "block") {
		t.Errorf("a set without layers: %v", err)
	}
}
