"""Forward and backward passes by hand, several times as fast as autograd.

base: what a pass offers; dense: CCP and NCP; conv: ConvCCP, by way of conv_geometry (what meets where at the border)
and conv_memory (kernels and buffers).
"""
