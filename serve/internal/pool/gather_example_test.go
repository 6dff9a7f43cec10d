package pool_test

import (
	"fmt"

	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// Two of four images that are on their way are judged together, and nothing waits for the
// last ones.
func ExampleGather() {
	coming := 4
	group := pool.Gather[string, string, int]{
		Most:   8,
		Coming: func(string) int { return coming },
		Do: func(model string, images []string) ([]int, error) {
			fmt.Println(model, "judges", images)
			bytes := make([]int, len(images))
			for i, image := range images {
				bytes[i] = len(image)
			}
			return bytes, nil
		},
	}
	var results []func() (int, error)
	for _, image := range []string{"cat.jpg", "dog.jpg", "horse.jpg", "cow.jpg"} {
		coming-- // this one has come
		results = append(results, group.Add("resnet", image))
	}
	for _, result := range results {
		n, err := result()
		fmt.Println(n, err)
	}
	// Output:
	// resnet judges [cat.jpg dog.jpg]
	// resnet judges [horse.jpg]
	// resnet judges [cow.jpg]
	// 7 <nil>
	// 7 <nil>
	// 9 <nil>
	// 7 <nil>
}
