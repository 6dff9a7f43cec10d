package pool_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// Whoever asks for an image that is being judged waits for that verdict, instead of having
// it judged again.
func ExampleFlight_Do() {
	var group pool.Flight[string, string]
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() {
			verdict, _, err := group.Do(context.Background(), "cat.jpg", func(_ context.Context, deliver func(string, error)) {
				deliver("a cat", nil) // all who ask have it
				// What else there is to do, such as storing it, keeps nobody waiting.
			})
			fmt.Println(verdict, err)
		})
	}
	asking.Wait()
	group.Wait() // for what is done after delivery
	// Output:
	// a cat <nil>
	// a cat <nil>
	// a cat <nil>
}
