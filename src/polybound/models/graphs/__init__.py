"""Any polynomial network as a graph of affine maps, sums and products.

graph      the four kinds of nodes, the loop that walks them for an algebra, the builder
chains     an algebra that finds the graphs that are one chain of products
recognise  such a chain as a CCP, NCP or ConvCCP
maps       the affine maps that chains do not need: general convolutions, selections, sums of entries, scales
algebras   numbers, intervals, derivatives, fractions
trace      PyTorch modules as graphs
traced     the tensors that a module is run on, and the nodes that they become
operations what each operation of PyTorch does to them
files      graphs as JSON and tensors, and every check of what a file claims
"""
