"""Prints what nodes of ONNX files read of each other, for TestBlockEndsOfExports.

    python3 extractor/testdata/generate_graphs.py NAME=OUTPUT=FILE ... > extractor/testdata/graphs.txt

Needs onnx. A line is a node: its operator, the values that it reads and those that it
computes, as numbers, x for the image and y for the output. What does not depend on the
image is left out. Each graph begins with # NAME, and the ends of its blocks are added by
hand after that: numbers, in order.
"""

import sys

import onnx

for argument in sys.argv[1:]:
    name, output, file = argument.split("=")
    graph = onnx.load(file, load_external_data=False).graph
    known = {graph.input[0].name: "x"}
    producers = {value: node for node in graph.node for value in node.output}

    def depends(value):
        if value not in known and value in producers:
            known[value] = ""
            if any([depends(i) for i in producers[value].input]):
                known[value] = "y" if value == output else str(sum(map(bool, known.values())))
        return bool(known.get(value))

    sys.setrecursionlimit(100000)
    depends(output)
    print("#", name)
    for node in graph.node:
        reads = dict.fromkeys(known[i] for i in node.input if known.get(i))
        makes = [known[o] for o in node.output if known.get(o)]
        if reads and makes:
            print(node.op_type, ",".join(reads), ",".join(makes))
