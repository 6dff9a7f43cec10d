package learn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestSetAside: about a fifth is set aside; who was set aside stays so when more images
// come, and none that was learned is set aside later where the class has some already.
func TestSetAside(t *testing.T) {
	images := func(n int) (all []reviewed, groups []int) {
		for i := range n {
			all = append(all, reviewed{Record: store.Record{Verdict: store.Verdict{Image: fmt.Sprintf("%064x", i)}}, class: []string{"a", "b"}[i%2]})
			groups = append(groups, i)
		}
		return all, groups
	}
	few, groups := images(100)
	setAside(few, groups)
	many, groups := images(1000)
	setAside(many, groups)
	held := 0
	for i := range many {
		if many[i].held {
			held++
		}
		if i < len(few) && few[i].held != many[i].held {
			t.Errorf("image %d was set aside: %t, then %t", i, few[i].held, many[i].held)
		}
	}
	if held < 150 || held > 250 {
		t.Errorf("%d of 1000 are set aside", held)
	}
	// Images that are alike stay together.
	some, groups := images(40)
	for i := range groups {
		groups[i] = i / 10 * 10
	}
	setAside(some, groups)
	for i := range some {
		if some[i].class == some[groups[i]].class && some[i].held != some[groups[i]].held {
			t.Errorf("image %d is apart from those that are like it", i)
		}
	}
	// A class of five has one that is set aside, and one of copies of one image is learned.
	for n := 5; n < 12; n++ {
		few, groups := images(2 * n)
		setAside(few, groups)
		for _, class := range []string{"a", "b"} {
			if !slices.ContainsFunc(few, func(r reviewed) bool { return r.held && r.class == class }) {
				t.Errorf("none of %d images of %s is set aside", n, class)
			}
		}
		copies := make([]int, 2*n)
		setAside(few, copies)
		if !slices.ContainsFunc(few, func(r reviewed) bool { return !r.held }) {
			t.Error("copies of one image are all set aside")
		}
	}
}

// TestDisagree: a review that was undone, and the same said twice, are no disagreement.
func TestDisagree(t *testing.T) {
	class := func(name string) store.Review { return store.Review{Decision: store.IsClass, Class: name} }
	undo := store.Review{Decision: store.Undo}
	for i, tt := range []struct {
		said []store.Review
		want bool
	}{
		{[]store.Review{class("a")}, false},
		{[]store.Review{class("a"), class("a")}, false},
		{[]store.Review{class("a"), class("b")}, true},
		{[]store.Review{class("a"), undo, class("b")}, false},
		{[]store.Review{undo, class("b"), {Decision: store.IsJunk}}, true},
	} {
		if got := disagree(tt.said); got != tt.want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

// TestEnough: the learning curve's answer by how many images became right.
func TestEnough(t *testing.T) {
	point := func(reviews, images, right int) Point {
		p := Point{Reviews: reviews, Images: images, Right: right, right: make([]bool, images)}
		for i := range right {
			p.right[i] = true
		}
		return p
	}
	for i, tt := range []struct {
		half, all Point
		want      string
	}{
		{point(40, 100, 60), point(80, 100, 80), "no"},
		{point(400, 1000, 900), point(800, 1000, 903), "yes"},
		{point(40, 100, 80), point(80, 100, 83), "unclear"},
		{point(4, 5, 1), point(8, 5, 5), "unclear"},
	} {
		c := Curve{Points: []Point{point(0, tt.all.Images, 0), tt.half, tt.all}}
		if c.answer(); c.Enough != tt.want || c.Because == "" {
			t.Errorf("%d: %s %s", i, c.Enough, c.Because)
		}
	}
}
