use outlast_shell::*; use std::process::*; use std::io::Write;
fn ok(a:&[&str],t:&str)->bool{let mut c=Command::new("timeout").arg("5").args(a).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();let _=c.stdin.take().unwrap().write_all(t.as_bytes());c.wait().unwrap().success()}
#[test] fn go(){
 let toks=["a","b"," "," "," ","\n",";"," & "," | ","&&","||",";;",";&","(",")","((","))"," { ","; }","[[ "," ]]","$(","$((","${","`","'","\"","\\","$","$'","<",">","<<A\n","\nA\n","<<<","<(",">&","&>","2>&1","#","! ","=","x=(","if ","; then ","; else ","; fi "," for x in ","; do ","; done ","while ","case x in "," esac ","function f ","f() ","coproc ","time ","wait ","nohup ","@(","x[","]","$!","é","\t","select ","y)", "x=", "echo ", "}"];
 let mut seed=std::env::var("SEED").ok().and_then(|s|s.parse().ok()).unwrap_or(1u64);
 let mut rnd=move||{seed^=seed<<13;seed^=seed>>7;seed^=seed<<17;seed};
 let (mut bad_b,mut bad_d,mut miss_b,mut miss_d,mut n)=(vec![],vec![],vec![],vec![],0);
 let (mut okb, mut okd)=(0,0);
 let t0=std::time::Instant::now();
 while t0.elapsed().as_secs()<100 { n+=1;
  let len=1+rnd()%14; let t:String=(0..len).map(|_|toks[(rnd()%toks.len() as u64) as usize]).collect();
  let p=analyze_script(t.as_bytes(),Dialect::Bash).is_parsed(); let b=ok(&["bash","-n"],&t); let b2=||ok(&["bash","-O","extglob","-n"],&t);
  if p&&!b&&!b2(){bad_b.push(t.clone())} if !p&&b{miss_b.push(t.clone())} if b {okb+=1}
  let p=analyze_script(t.as_bytes(),Dialect::Dash).is_parsed(); let d=ok(&["dash","-n"],&t);
  if p&&!d{bad_d.push(t.clone())} if !p&&d{miss_d.push(t.clone())} if d {okd+=1}
 }
 println!("n {n} okb {okb} okd {okd}");
 for (name,v) in [("BASH refuses, we accept",&mut bad_b),("DASH refuses, we accept",&mut bad_d),("bash accepts, we do not",&mut miss_b),("dash accepts, we do not",&mut miss_d)] { v.sort_by_key(|t|(t.len(),t.clone()));v.dedup(); println!("{name}: {}",v.len()); for t in v.iter().take(14){println!("   {t:?}  {:?}",analyze_script(t.as_bytes(),if name.to_lowercase().starts_with("bash"){Dialect::Bash}else{Dialect::Dash}).parsed);} }
}
