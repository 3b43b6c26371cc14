// SPDX-License-Identifier: Apache-2.0

package kernels

// Feature is a set of instructions of amd64, by the name that Intel's manual gives its CPUID bit.
type Feature string

// Features that kernels are written for.
const (
	FeatureAVX        Feature = "AVX"
	FeatureAVX2       Feature = "AVX2"
	FeatureFMA        Feature = "FMA"
	FeatureF16C       Feature = "F16C"
	FeatureAVX512F    Feature = "AVX512F"
	FeatureAVX512BW   Feature = "AVX512BW"
	FeatureAVX512DQ   Feature = "AVX512DQ"
	FeatureAVX512VL   Feature = "AVX512VL"
	FeatureAVX512BF16 Feature = "AVX512_BF16"
	FeatureAMXTile    Feature = "AMX_TILE"
	FeatureAMXBF16    Feature = "AMX_BF16"
	FeatureBMI2       Feature = "BMI2"
)

// features are in the order in which messages and documents list them.
var features = []struct {
	name          Feature
	leaf, subleaf uint32 // of CPUID
	register      register
	bit           uint
	state         uint64 // bits of XCR0: registers that the operating system must save
}{
	{FeatureAVX, 1, 0, ecx, 28, vectorState},
	{FeatureAVX2, 7, 0, ebx, 5, vectorState},
	{FeatureFMA, 1, 0, ecx, 12, vectorState},
	{FeatureF16C, 1, 0, ecx, 29, vectorState},
	{FeatureAVX512F, 7, 0, ebx, 16, wideState},
	{FeatureAVX512BW, 7, 0, ebx, 30, wideState},
	{FeatureAVX512DQ, 7, 0, ebx, 17, wideState},
	{FeatureAVX512VL, 7, 0, ebx, 31, wideState},
	{FeatureAVX512BF16, 7, 1, eax, 5, wideState},
	{FeatureAMXTile, 7, 0, edx, 24, tileState},
	{FeatureAMXBF16, 7, 0, edx, 22, tileState},
	{FeatureBMI2, 7, 0, ebx, 8, 0},
}

// register numbers the results of CPUID.
type register int

const (
	eax register = iota
	ebx
	ecx
	edx
)

// Bits of XCR0.
const (
	vectorState = 1<<1 | 1<<2                      // XMM and YMM
	wideState   = vectorState | 1<<5 | 1<<6 | 1<<7 // masks, upper halves of ZMM, ZMM16 to ZMM31
	tileState   = wideState | 1<<17 | 1<<18        // tile configuration and tiles
	xsave       = 1 << 27                          // OSXSAVE, leaf 1, ECX: XGETBV reads XCR0
)

// Needs returns the features that the kernels of v need; none for Generic.
func Needs(v Variant) []Feature {
	var needs []Feature
	if v >= AVX2 {
		needs = append(needs, FeatureAVX, FeatureAVX2, FeatureFMA, FeatureF16C)
	}
	if v >= AVX512 {
		needs = append(needs, FeatureAVX512F, FeatureAVX512BW, FeatureAVX512DQ, FeatureAVX512VL)
	}
	if v >= AMX {
		needs = append(needs, FeatureAVX512BF16, FeatureAMXTile, FeatureAMXBF16, FeatureBMI2)
	}
	return needs
}

// processor is what the choice of a variant asks a processor and its operating system.
type processor struct {
	cpuid        func(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
	xcr0         func() uint64 // called only where CPUID reports OSXSAVE
	tilesAllowed func() bool   // called only where the processor has tiles
}

// has reports whether the processor has a feature and the operating system saves its registers.
func (p *processor) has(name Feature) bool {
	for _, f := range features {
		if f.name != name {
			continue
		}
		if highest, _, _, _ := p.cpuid(0, 0); highest < f.leaf {
			return false
		}
		if highest, _, _, _ := p.cpuid(f.leaf, 0); f.subleaf > 0 && highest < f.subleaf {
			return false
		}
		var r [4]uint32
		r[eax], r[ebx], r[ecx], r[edx] = p.cpuid(f.leaf, f.subleaf)
		return r[f.register]>>f.bit&1 == 1 && p.state()&f.state == f.state
	}
	return false
}

// state returns XCR0, or 0 where the operating system does not save registers by XSAVE.
func (p *processor) state() uint64 {
	if _, _, c, _ := p.cpuid(1, 0); c&xsave == 0 {
		return 0
	}
	return p.xcr0()
}

// missing returns what v needs and the processor or its operating system lacks.
func (p *processor) missing(v Variant) []string {
	var lacking []string
	for _, f := range Needs(v) {
		if !p.has(f) {
			lacking = append(lacking, string(f))
		}
	}
	if v == AMX && !(p.has(FeatureAMXTile) && p.tilesAllowed()) {
		lacking = append(lacking, "permission of the operating system to use tiles")
	}
	return lacking
}
