package report

import (
	"container/heap"
	"math"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// thin removes points of a curve until at most n are left, always the one with
// the smallest triangle with its neighbours (Visvalingam and Whyatt 1993), so that
// corners stay and the area under the curve hardly changes.
func thin(points []metrics.Point, n int) []metrics.Point {
	if len(points) <= n {
		return points
	}
	if points = corners(points); len(points) <= n {
		return points
	}
	t := newTriangles(points)
	for range len(points) - n {
		t.dropSmallest()
	}
	return t.left()
}

// corners removes the points that lie on the line between their neighbours: most
// points of a large curve.
func corners(points []metrics.Point) []metrics.Point {
	left := points[:1:1]
	for i := 1; i < len(points)-1; i++ {
		if triangle(left[len(left)-1], points[i], points[i+1]) != 0 {
			left = append(left, points[i])
		}
	}
	return append(left, points[len(points)-1])
}

// triangle returns twice the area of a triangle.
func triangle(a, b, c metrics.Point) float64 {
	return math.Abs((b.X-a.X)*(c.Y-a.Y) - (c.X-a.X)*(b.Y-a.Y))
}

// triangles is a heap of the inner points of a curve that are left, the one
// with the smallest triangle on top.
type triangles struct {
	points     []metrics.Point
	prev, next []int // neighbours of a point that are left
	area       []float64
	heap       []int
	at         []int // place of a point in the heap; −1 if it is not in it
}

func newTriangles(points []metrics.Point) *triangles {
	n := len(points)
	t := &triangles{points: points, prev: make([]int, n), next: make([]int, n), area: make([]float64, n), at: make([]int, n)}
	for i := range points {
		t.prev[i], t.next[i], t.at[i] = i-1, i+1, -1
	}
	for i := 1; i < n-1; i++ {
		t.area[i], t.at[i] = t.triangle(i), len(t.heap)
		t.heap = append(t.heap, i)
	}
	heap.Init(t)
	return t
}

func (t *triangles) triangle(i int) float64 {
	return triangle(t.points[t.prev[i]], t.points[i], t.points[t.next[i]])
}

func (t *triangles) dropSmallest() {
	i := heap.Pop(t).(int)
	dropped := t.area[i]
	before, after := t.prev[i], t.next[i]
	t.next[before], t.prev[after] = after, before
	for _, j := range []int{before, after} {
		if t.at[j] >= 0 {
			// Never smaller than the removed triangle: otherwise a curve would be
			// removed point by point from a corner.
			t.area[j] = max(dropped, t.triangle(j))
			heap.Fix(t, t.at[j])
		}
	}
}

func (t *triangles) left() (left []metrics.Point) {
	for i := 0; i < len(t.points); i = t.next[i] {
		left = append(left, t.points[i])
	}
	return left
}

func (t *triangles) Len() int { return len(t.heap) }

func (t *triangles) Less(a, b int) bool {
	i, j := t.heap[a], t.heap[b]
	return t.area[i] < t.area[j] || t.area[i] == t.area[j] && i < j
}

func (t *triangles) Swap(a, b int) {
	t.heap[a], t.heap[b] = t.heap[b], t.heap[a]
	t.at[t.heap[a]], t.at[t.heap[b]] = a, b
}

// Push is never called: the heap only shrinks.
func (t *triangles) Push(any) { panic("report: a removed point is never added again") }

func (t *triangles) Pop() any {
	last := t.heap[len(t.heap)-1]
	t.heap, t.at[last] = t.heap[:len(t.heap)-1], -1
	return last
}
