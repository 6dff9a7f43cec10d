// Mlrbfn says for every image which class it is of, and whether it is of any
// class that it learned. `mlrbfn --help` lists its commands.
package main

import "github.com/mlrbfn/mlrbfn/internal/command"

func main() { command.Main() }
